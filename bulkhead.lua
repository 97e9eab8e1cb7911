-- How many requests are in work: past Python and in Flask, of all models and of each. Models that hang leave places for
-- the others: a model may have as many places as are free, as in Flask (serving/front/bulkhead.py). nginx's workers share
-- the counts; each changes its own only, so that what one had in work when it died is in work no more when the next one
-- begins.

local counts = ngx.shared.bulkhead

local bulkhead = { places = 1, alone = true } -- nginx.conf sets both; a model that is alone may have all places

local TRITON, FLASK = "triton", "flask" -- where requests are in work
local COLUMNS = 4096 -- models, by a digest of the name: two of many may share one, and so its places
local held = {} -- what counts a request, by connection, which has one at a time; an error page forgets variables

local function row(worker, name) return worker .. ":" .. name end

-- Of all workers.
local function in_work(name)
    local sum = 0
    for worker = 0, ngx.worker.count() - 1 do sum = sum + (counts:get(row(worker, name)) or 0) end
    return sum
end

-- There is no row without a request in work: who names many models would fill the memory.
local function add(names, number)
    for _, name in ipairs(names) do
        local key = row(ngx.worker.id(), name)
        if counts:incr(key, number, 0) == 0 then counts:delete(key) end
    end
end

-- Whether there was a place for another request of the model.
local function take(where, model)
    local column, free = where, bulkhead.places
    if not bulkhead.alone then
        column, free = where .. ngx.crc32_long(model) % COLUMNS, free - in_work(where)
    end
    if in_work(column) >= free then return false end
    held[ngx.var.connection] = bulkhead.alone and { where } or { where, column }
    add(held[ngx.var.connection], 1)
    return true
end

-- The model that the request names outside of its body. Flask says whether it is served, and whether all places name the
-- same.
local function named()
    local var = ngx.var
    return var.path:match("^/models/(.+)/invoke$")
        or var.path:match("^/v2/models/([^/]+)/")
        or var.http_x_amzn_sagemaker_target_model
        or (var.http_x_amzn_sagemaker_custom_attributes or ""):match("model_?name=([^,;]+)")
        or (var.args or ""):match("model_?name=([^&]+)")
end

-- In a new worker of nginx.
function bulkhead.begin_worker()
    local own = row(ngx.worker.id(), "")
    for _, key in ipairs(counts:get_keys(0)) do
        if key:sub(1, #own) == own then counts:delete(key) end
    end
end

-- Whether the model has a place for another request past Python.
function bulkhead.enter(model) return take(TRITON, model) end

-- Before a request goes to Flask, for which a refusal is more work than for nginx. Flask counts too: it goes on with
-- what callers have left. Only Flask knows which of several models a body names: what it refuses of one that hangs would
-- take the places of the others here.
function bulkhead.enter_flask()
    local model = bulkhead.alone or named()
    if model and not take(FLASK, model) then return ngx.exit(ngx.HTTP_TOO_MANY_REQUESTS) end
end

-- When a reply begins: Flask is done with it by then, however slowly it is read, unless it is a stream.
function bulkhead.begin_reply()
    if ngx.var.upstream_http_x_accel_buffering ~= "no" then bulkhead.leave() end
end

-- After each request, however it ended.
function bulkhead.leave()
    local connection = ngx.var.connection
    if held[connection] then
        add(held[connection], -1)
        held[connection] = nil
    end
end

return bulkhead
