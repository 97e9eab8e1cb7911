-- Bounds what callers take of a worker of nginx, which runs this (its Lua module): how many requests it has, how many of
-- their bodies are still coming, and how slowly they come. Each worker counts its own.

local semaphore = require("ngx.semaphore")

local RATE = 8 * 1024 -- bytes a second: slower ones would keep a connection for hours
local PATIENCE = 5 -- seconds, in which a body must come at that rate
local LITTLE_PATIENCE = 1 -- the same where many bodies are coming
local PROBE = 1024 * 1024 -- bytes; a body is written in pieces of that size
local A_MOMENT = 0.1 -- seconds, in which the rest of a small body comes
local MOST_WITHOUT_POST = 1024 -- bytes of a body that nothing is done with

-- nginx.conf makes replies of these
local TOO_LARGE, TOO_SLOW, TOO_MANY = 413, 460, 461

local arrivals = { most_requests = 1, most_bodies = 1 } -- nginx.conf sets both

local requests, bodies = {}, {} -- by connection, which has one at a time; an error page forgets variables
local request_count, body_count = 0, 0

local function received() return tonumber(ngx.var.request_length) end

-- Whether the body comes fast enough until it has come.
local function await(come)
    repeat
        local before = received()
        local patience = body_count > arrivals.most_bodies / 2 and LITTLE_PATIENCE or PATIENCE
        if come:wait(patience) then return true end
    until received() - before < RATE * patience
    return false
end

-- Reads the body. One that came with its headers, as a small one does, is not counted.
function arrivals.read_body()
    local var = ngx.var
    local length, chunked = tonumber(var.http_content_length), var.http_transfer_encoding
    if not (length or chunked) then return end
    if length and length > MOST_WITHOUT_POST and var.request_method ~= "POST" then return ngx.exit(TOO_LARGE) end
    local come
    local reader = ngx.thread.spawn(function()
        ngx.req.read_body()
        if come then come:post() end
    end)
    if coroutine.status(reader) == "zombie" then return end
    come = semaphore.new()
    if body_count >= arrivals.most_bodies then
        if come:wait(A_MOMENT) then return end
        return ngx.exit(TOO_MANY)
    end
    local connection = var.connection
    bodies[connection], body_count = true, body_count + 1
    local has_come = await(come)
    bodies[connection], body_count = nil, body_count - 1
    if not has_come then return ngx.exit(TOO_SLOW) end
end

-- Before a request is worked on.
function arrivals.admit()
    local connection = ngx.var.connection
    if not requests[connection] then
        if request_count >= arrivals.most_requests then return ngx.exit(TOO_MANY) end
        requests[connection], request_count = true, request_count + 1
    end
    arrivals.read_body()
end

-- After each request, however it ended.
function arrivals.forget()
    local connection = ngx.var.connection
    if requests[connection] then requests[connection], request_count = nil, request_count - 1 end
    if bodies[connection] then bodies[connection], body_count = nil, body_count - 1 end
end

-- Whether nothing more can be written into the folder of this file.
function arrivals.disk_is_full(file)
    local probe = io.open(file, "w")
    if not probe then return false end
    local written = probe:write(("x"):rep(PROBE)) and probe:flush()
    probe:close()
    os.remove(file)
    return not written
end

return arrivals
