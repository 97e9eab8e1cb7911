-- How many requests of each model are past Python: models that hang leave places for the others. A model may have as many
-- places as are free, as in Flask (serving/front/bulkhead.py). nginx's workers share the counts; each changes its own only,
-- so that what one had in work when it died is in work no more when the next one begins.

local counts = ngx.shared.bulkhead

local bulkhead = { places = 1, alone = true } -- nginx.conf sets both; a model that is alone may have all places

local TOTAL = "" -- the row of all models
local held = {} -- the model, by connection, which has one request at a time; an error page forgets variables

local function row(worker, model) return worker .. ":" .. model end

-- Of all workers.
local function in_work(model)
    local sum = 0
    for worker = 0, ngx.worker.count() - 1 do sum = sum + (counts:get(row(worker, model)) or 0) end
    return sum
end

local function add(model, number)
    local worker = ngx.worker.id()
    counts:incr(row(worker, model), number, 0)
    counts:incr(row(worker, TOTAL), number, 0)
end

-- In a new worker of nginx.
function bulkhead.begin_worker()
    local own = row(ngx.worker.id(), "")
    for _, key in ipairs(counts:get_keys(0)) do
        if key:sub(1, #own) == own then counts:delete(key) end
    end
end

-- Whether the model has a place for another request.
function bulkhead.enter(model)
    local free = bulkhead.places - (bulkhead.alone and 0 or in_work(TOTAL))
    if in_work(model) >= free then return false end
    add(model, 1)
    held[ngx.var.connection] = model
    return true
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
