-- Triton writes NaN and infinities in a JSON reply as such, which is no JSON. As in Flask's replies they become null.

local nulls = {}

-- The next part of a reply, which may begin and end within a string or a word. `state` is what the part before it left:
-- whether a string goes on (in_string), and the text that is to be read with this part (held).
function nulls.replaced(state, part, is_last)
    local has_words = part:find("NaN", 1, true) or part:find("Infinity", 1, true) or part:find("\\", 1, true)
    local is_cut = state.held ~= "" or part:find("[%-%a]$")
    if not (has_words or is_cut) then -- as nearly all are
        local _, quotes = part:gsub('"', "")
        state.in_string = state.in_string ~= (quotes % 2 == 1)
        return part
    end
    local text, held = state.held .. part, ""
    text = text:gsub('([^"\\]*)(\\?.?)', function(piece, mark) -- up to a quote, or to an escape and what it escapes
        if mark == "\\" then mark, held = "", mark end
        if not state.in_string then piece = piece:gsub("%-?Infinity", "null"):gsub("NaN", "null") end
        state.in_string = state.in_string ~= (mark == '"')
        return piece .. mark
    end)
    if not (state.in_string or is_last) then
        held = text:sub(-#"-Infinity"):match("[%-%a]*$")
        text = text:sub(1, #text - #held)
    end
    state.held = held
    return text
end

-- Filters of a reply's headers and of its parts.
function nulls.header()
    if ngx.var.upstream_http_inference_header_content_length then return end -- binary
    ngx.ctx.nulls = { in_string = false, held = "" }
    ngx.header.content_length = nil -- null is longer than NaN
end

function nulls.body()
    local state = ngx.ctx.nulls
    if state then ngx.arg[1] = nulls.replaced(state, ngx.arg[1], ngx.arg[2]) end
end

return nulls
