-- How many requests are in work: of each model those past Python, and all that Flask works on. Models that hang leave
-- places for the others: past Python a model may have as many places as are free, as in Flask
-- (serving/front/bulkhead.py). nginx's workers share the counts; each changes its own only, so that what one had in work
-- when it died is in work no more when the next one begins.

local counts = ngx.shared.bulkhead

local bulkhead = { places = 1, alone = true } -- nginx.conf sets both; a model that is alone may have all places

local TOTAL = "" -- what all models have past Python; each of them is counted by its name
local FLASK = " " -- what Flask works on; no model has this name
local held = {} -- what counts a request, by connection, which has one at a time; an error page forgets variables

local function row(worker, name) return worker .. ":" .. name end

-- Of all workers.
local function in_work(name)
    local sum = 0
    for worker = 0, ngx.worker.count() - 1 do sum = sum + (counts:get(row(worker, name)) or 0) end
    return sum
end

local function add(names, number)
    for _, name in ipairs(names) do counts:incr(row(ngx.worker.id(), name), number, 0) end
end

local function hold(...)
    held[ngx.var.connection] = { ... }
    add({ ... }, 1)
end

-- In a new worker of nginx.
function bulkhead.begin_worker()
    local own = row(ngx.worker.id(), "")
    for _, key in ipairs(counts:get_keys(0)) do
        if key:sub(1, #own) == own then counts:delete(key) end
    end
end

-- Whether the model has a place for another request past Python.
function bulkhead.enter(model)
    local free = bulkhead.places - (bulkhead.alone and 0 or in_work(TOTAL))
    if in_work(model) >= free then return false end
    hold(model, TOTAL)
    return true
end

-- Before a request goes to Flask, for which a refusal is more work than for nginx. Flask counts too: it goes on with what
-- callers have left. Of several models only Flask knows which is asked: what it refuses of one that hangs would take the
-- places of the others here.
function bulkhead.enter_flask()
    if not bulkhead.alone then return end
    if in_work(FLASK) >= bulkhead.places then return ngx.exit(ngx.HTTP_TOO_MANY_REQUESTS) end
    hold(FLASK)
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
