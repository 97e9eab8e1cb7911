-- The door for small tensors past Python, run by nginx (its Lua module, LuaJIT). A request that is plainly a small tensor
-- goes to Triton; every other one goes to Flask, which also says what is wrong with it; only when too many are past Python the door refuses. No byte
-- of a caller's JSON reaches Triton: it is read once, checked and written anew, its numbers as binary data.

local bulkhead = require("bulkhead")
local ffi = require("ffi")
local json = require("cjson").new()
json.decode_max_depth(12) -- four for document, inputs, input and data, the rest for nested data
json.decode_invalid_numbers(false) -- NaN, Infinity, 0x10

local MOST_BYTES = 16 * 1024 -- of a body
local SAFE_NAME = "^[%w_.:/ -]+$"
local EXACT = 2 ^ 53 - 1 -- beyond it two whole numbers can be the same double
local LARGEST_FP32 = (2 - 2 ^ -23) * 2 ^ 127
local LARGEST_FP64 = (2 - 2 ^ -52) * 2 ^ 1023 -- 1e999 is read as infinity

-- What names the model, and the version if it does: "Target-Model|Custom-Attributes|query string".
local NAMING = {
    "^([%w_.-]+)||$",
    "^|model_name=([%w_.-]+)|$",
    "^|model_name=([%w_.-]+);model_version=(%d+)|$",
    "^||model_name=([%w_.-]+)$",
    "^||model_name=([%w_.-]+)&model_version=(%d+)$",
}
local JSON_TYPE = { ["application/json"] = true, ["application/json; charset=utf-8"] = true }
local BINARY_TYPE = "^application/vnd%.sagemaker%-triton%.binary%+json; ?json%-header%-size=(%d+)$"

-- The keys that the door knows.
local DOCUMENT = { id = true, inputs = true, outputs = true, parameters = true }
local DOCUMENT_PARAMETERS = { binary_data_output = true }
local INPUT = { name = true, datatype = true, shape = true, data = true, parameters = true }
local INPUT_PARAMETERS = { binary_data_size = true }
local OUTPUT = { name = true, parameters = true }
local OUTPUT_PARAMETERS = { binary_data = true }

local function between(least, most)
    return function(value) return type(value) == "number" and value >= least and value <= most end
end

local function whole(least, most)
    local within = between(least, most)
    return function(value) return within(value) and value % 1 == 0 end
end

local function boolean(value) return type(value) == "boolean" end

local function datatype(c_type, takes)
    return { size = ffi.sizeof(c_type), array = ffi.typeof(c_type .. "[?]"), takes = takes }
end

local DATATYPES = {
    BOOL = datatype("bool", boolean),
    INT8 = datatype("int8_t", whole(-2 ^ 7, 2 ^ 7 - 1)),
    INT16 = datatype("int16_t", whole(-2 ^ 15, 2 ^ 15 - 1)),
    INT32 = datatype("int32_t", whole(-2 ^ 31, 2 ^ 31 - 1)),
    INT64 = datatype("int64_t", whole(-EXACT, EXACT)),
    UINT8 = datatype("uint8_t", whole(0, 2 ^ 8 - 1)),
    UINT16 = datatype("uint16_t", whole(0, 2 ^ 16 - 1)),
    UINT32 = datatype("uint32_t", whole(0, 2 ^ 32 - 1)),
    UINT64 = datatype("uint64_t", whole(0, EXACT)),
    FP32 = datatype("float", between(-LARGEST_FP32, LARGEST_FP32)),
    FP64 = datatype("double", between(-LARGEST_FP64, LARGEST_FP64)),
}

-- The functions up to `rewritten` raise an error where a document is not plainly right, no matter which.

-- The object, or an empty one for none; an error where it has a key that the door does not know.
local function known(object, keys)
    if object == nil then return {} end
    for key in pairs(object) do assert(keys[key]) end
    return object
end

local function name_of(text)
    assert(type(text) == "string" and text:find(SAFE_NAME))
    return text
end

local function flag(value)
    assert(value == nil or type(value) == "boolean")
    return value
end

local function elements_of(shape)
    local elements = 1
    for _, size in ipairs(shape) do
        assert(type(size) == "number" and size >= 1 and size % 1 == 0)
        elements = elements * size
        assert(elements <= MOST_BYTES)
    end
    assert(#shape > 0)
    return elements
end

-- Writes the values of nested lists into the array, from index `at` on; returns the index behind the last one.
local function fill(array, at, elements, kind, list)
    assert(#list > 0)
    for _, value in ipairs(list) do
        if type(value) == "table" then
            at = fill(array, at, elements, kind, value)
        else
            assert(at < elements and kind.takes(value))
            array[at] = value
            at = at + 1
        end
    end
    return at
end

local function packed(list, kind, elements)
    local array = kind.array(elements)
    assert(fill(array, 0, elements, kind, list) == elements)
    return ffi.string(array, elements * kind.size)
end

-- An input as Triton gets it, and its data; `next_bytes` takes them from behind the JSON.
local function read_input(input, next_bytes)
    known(input, INPUT)
    local kind, elements = DATATYPES[input.datatype], elements_of(input.shape)
    local size, data = elements * kind.size, nil
    if input.data ~= nil then
        assert(input.parameters == nil)
        data = packed(input.data, kind, elements)
    else
        assert(known(input.parameters, INPUT_PARAMETERS).binary_data_size == size)
        data = next_bytes(size)
    end
    local parameters = { binary_data_size = size }
    return { name = name_of(input.name), datatype = input.datatype, shape = input.shape, parameters = parameters }, data
end

local function read_output(output)
    local parameters = known(known(output, OUTPUT).parameters, OUTPUT_PARAMETERS)
    return { name = name_of(output.name), parameters = { binary_data = flag(parameters.binary_data) } }
end

local door = { models = {}, default_model = "" } -- nginx.conf sets both

-- The body for Triton and the length of its JSON, of a body whose first `json_size` bytes are JSON.
function door.rewritten(body, json_size)
    assert(json_size > 0 and json_size <= #body)
    local text, position = body:sub(1, json_size), json_size
    assert(not text:find("\0", 1, true)) -- cjson stops there
    local function next_bytes(size)
        position = position + size
        assert(position <= #body)
        return body:sub(position - size + 1, position)
    end
    local document, data = known(json.decode(text), DOCUMENT), {}
    local parameters = known(document.parameters, DOCUMENT_PARAMETERS)
    local anew = { inputs = {}, parameters = { binary_data_output = flag(parameters.binary_data_output) } }
    for i, input in ipairs(document.inputs) do
        anew.inputs[i], data[i] = read_input(input, next_bytes)
    end
    assert(#data > 0 and position == #body)
    if document.outputs ~= nil then
        assert(#document.outputs > 0)
        anew.outputs = {}
        for i, output in ipairs(document.outputs) do anew.outputs[i] = read_output(output) end
    end
    if document.id ~= nil then anew.id = name_of(document.id) end
    local head = json.encode(anew)
    return head .. table.concat(data), #head
end

-- The length of a body that the door may read, else nil.
local function length_of_plain_body(var)
    if var.request_method ~= "POST" or var.http_content_encoding or var.http_x_amzn_sagemaker_session_id then return end
    local length = tonumber(var.content_length)
    return length and length <= MOST_BYTES and length or nil
end

-- Sends the request to Triton and does not return, or returns and so leaves it to Flask.
local function enter(name, version, json_size)
    local var = ngx.var
    if not (version and json_size) then return end
    ngx.req.read_body()
    local ok, body, size = pcall(door.rewritten, ngx.req.get_body_data(), json_size)
    if not ok then return end
    if not bulkhead.enter(name) then return ngx.exit(ngx.HTTP_TOO_MANY_REQUESTS) end
    var.door_model, var.door_version, var.door_body, var.door_json_size = name, version, body, size
    ngx.exec("@triton")
end

local function named(target, attributes, query)
    local said = (target or "") .. "|" .. (attributes or "") .. "|" .. (query or "")
    if said == "||" then return door.default_model end
    for _, pattern in ipairs(NAMING) do
        local name, version = said:match(pattern)
        if name then return name, version end
    end
end

-- POST /invocations
function door.invocations()
    local var = ngx.var
    local length, kind = length_of_plain_body(var), var.content_type or ""
    local name, version =
        named(var.http_x_amzn_sagemaker_target_model, var.http_x_amzn_sagemaker_custom_attributes, var.args)
    local model = door.models[name]
    if not (length and model) then return end
    local json_size = tonumber(kind:match(BINARY_TYPE))
    if JSON_TYPE[kind] and not model.has_client then json_size = length end
    enter(name, version or model.version, json_size)
end

-- POST /v2/models/NAME[/versions/VERSION]/infer, whose path nginx.conf takes apart
function door.infer()
    local var = ngx.var
    local json_size, header_size = length_of_plain_body(var), var.http_inference_header_content_length
    local name, version = var.kserve_model, var.kserve_version
    local model = door.models[name]
    if not (json_size and model) then return end
    if header_size then json_size = tonumber(header_size:match("^%d+$")) end
    enter(name, version ~= "" and version or model.version, json_size)
end

-- The next part of a reply in JSON. Triton writes NaN and infinities as such, which is no JSON; as in Flask's replies
-- they become null. `state` is between the parts: whether a string has begun, and the start of what may go on.
function door.nulled(state, part, is_last)
    local is_cut = not is_last and part:find("[%-%a\\]$")
    local is_plain = not (part:find("NaN", 1, true) or part:find("Infinity", 1, true) or part:find("\\", 1, true))
    if is_plain and not is_cut and state.held == "" then
        local _, quotes = part:gsub('"', "")
        state.in_string = state.in_string ~= (quotes % 2 == 1)
        return part
    end
    local text, written, at = state.held .. part, {}, 1
    state.held = ""
    while at <= #text do
        local stop = text:find(state.in_string and '["\\]' or '"', at) or #text + 1
        local piece, mark = text:sub(at, stop - 1), text:sub(stop, stop)
        if not state.in_string then
            if mark == "" and not is_last then state.held = piece:sub(-9):match("[%-%a]*$") end
            piece = piece:sub(1, #piece - #state.held):gsub("%-?Infinity", "null"):gsub("NaN", "null")
        end
        if mark == '"' then
            state.in_string = not state.in_string
        elseif mark == "\\" and stop == #text then
            mark, state.held = "", mark
        elseif mark == "\\" then
            stop = stop + 1
            mark = text:sub(stop - 1, stop)
        end
        written[#written + 1] = piece .. mark
        at = stop + 1
    end
    return table.concat(written)
end

-- Filters of Triton's replies.
function door.reply_header()
    if ngx.var.upstream_http_inference_header_content_length then return end
    ngx.ctx.json_reply = { in_string = false, held = "" }
    ngx.header.content_length = nil -- null is longer than NaN
end

function door.reply_body()
    local state = ngx.ctx.json_reply
    if state then ngx.arg[1] = door.nulled(state, ngx.arg[1], ngx.arg[2]) end
end

return door
