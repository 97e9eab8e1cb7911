-- The door for small tensors past Python, run by nginx (its Lua module, LuaJIT). A request that is plainly a small tensor
-- goes to Triton; every other one goes to Flask, which also says what is wrong with it. No byte of a caller's JSON reaches
-- Triton: it is read once, checked and written anew, its numbers as binary data.

local bulkhead = require("bulkhead")
local ffi = require("ffi")
local json = require("cjson").new()
json.decode_max_depth(12) -- four for document, inputs, input and data, the rest for nested data
json.decode_invalid_numbers(false) -- NaN, Infinity, 0x10

local MOST_BYTES = 16 * 1024 -- of a body
local SAFE_NAME = "^[%w_.:/ -]+$"
local EXACT = 2 ^ 53 - 1 -- beyond it two whole numbers can be the same double

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

-- `least` and `most` are of the numbers in JSON that the type holds.
local function datatype(c_type, least, most)
    local is_whole = c_type:find("int") ~= nil
    return { size = ffi.sizeof(c_type), array = ffi.typeof(c_type .. "[?]"), is_whole = is_whole, least = least, most = most }
end

local DATATYPES = {
    BOOL = datatype("bool", 1, 0), -- has no numbers: JSON's true and false are Flask's
    INT8 = datatype("int8_t", -2 ^ 7, 2 ^ 7 - 1),
    INT16 = datatype("int16_t", -2 ^ 15, 2 ^ 15 - 1),
    INT32 = datatype("int32_t", -2 ^ 31, 2 ^ 31 - 1),
    INT64 = datatype("int64_t", -EXACT, EXACT),
    UINT8 = datatype("uint8_t", 0, 2 ^ 8 - 1),
    UINT16 = datatype("uint16_t", 0, 2 ^ 16 - 1),
    UINT32 = datatype("uint32_t", 0, 2 ^ 32 - 1),
    UINT64 = datatype("uint64_t", 0, EXACT),
    FP32 = datatype("float", -3.4028234663852886e38, 3.4028234663852886e38),
    FP64 = datatype("double", -1.7976931348623157e308, 1.7976931348623157e308), -- 1e999 is read as infinity
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

-- Writes the numbers of nested lists into the array, from index `at` on; returns the index behind the last one.
local function fill(array, at, elements, kind, list)
    assert(#list > 0)
    for _, value in ipairs(list) do
        if type(value) == "table" then
            at = fill(array, at, elements, kind, value)
        else
            assert(at < elements and type(value) == "number" and value >= kind.least and value <= kind.most)
            assert(value % 1 == 0 or not kind.is_whole)
            array[at], at = value, at + 1
        end
    end
    return at
end

local function packed(list, kind, elements)
    local array = kind.array(elements)
    assert(fill(array, 0, elements, kind, list) == elements)
    return ffi.string(array, elements * kind.size)
end

-- An input as Triton gets it, and its data, which may be the next bytes of the body, from `at` on; and how far that went.
local function read_input(input, body, at)
    known(input, INPUT)
    local kind, elements = DATATYPES[input.datatype], elements_of(input.shape)
    local size, data = elements * kind.size, nil
    if input.data ~= nil then
        assert(input.parameters == nil)
        data = packed(input.data, kind, elements)
    else
        assert(known(input.parameters, INPUT_PARAMETERS).binary_data_size == size)
        data, at = body:sub(at, at + size - 1), at + size
    end
    local parameters = { binary_data_size = size }
    return { name = name_of(input.name), datatype = input.datatype, shape = input.shape, parameters = parameters }, data, at
end

local function read_output(output)
    local parameters = known(known(output, OUTPUT).parameters, OUTPUT_PARAMETERS)
    return { name = name_of(output.name), parameters = { binary_data = flag(parameters.binary_data) } }
end

-- The body for Triton and the length of its JSON, of a body that begins with `json_size` bytes of JSON ("": it is all).
local function rewritten(body, json_size)
    assert(not json_size:find("%D"))
    json_size = tonumber(json_size) or #body
    assert(json_size > 0 and json_size <= #body)
    local text, data, at = body:sub(1, json_size), {}, json_size + 1
    assert(not text:find("\0", 1, true)) -- cjson stops there
    local document = known(json.decode(text), DOCUMENT)
    local parameters = known(document.parameters, DOCUMENT_PARAMETERS)
    local anew = { inputs = {}, parameters = { binary_data_output = flag(parameters.binary_data_output) } }
    for i, input in ipairs(document.inputs) do
        anew.inputs[i], data[i], at = read_input(input, body, at)
    end
    assert(#data > 0 and at == #body + 1) -- the data are all there
    if document.outputs ~= nil then
        assert(#document.outputs > 0)
        anew.outputs = {}
        for i, output in ipairs(document.outputs) do anew.outputs[i] = read_output(output) end
    end
    if document.id ~= nil then anew.id = name_of(document.id) end
    local head = json.encode(anew)
    return head .. table.concat(data), #head
end

local door = { models = {}, default_model = "" } -- nginx.conf sets both

-- Sends the request to Triton and does not return, or returns and so leaves it to Flask.
local function enter(name, version, json_size)
    local var = ngx.var
    if var.request_method ~= "POST" or var.http_content_encoding or var.http_x_amzn_sagemaker_session_id then return end
    local length = tonumber(var.content_length)
    if not version or not length or length > MOST_BYTES then return end
    local ok, body, size = pcall(rewritten, ngx.req.get_body_data(), json_size)
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
    local name, version =
        named(var.http_x_amzn_sagemaker_target_model, var.http_x_amzn_sagemaker_custom_attributes, var.args)
    local model, kind = door.models[name], var.content_type or ""
    if not model then return end
    local json_size = kind:match(BINARY_TYPE) or JSON_TYPE[kind] and not model.has_client and ""
    if json_size then enter(name, version or model.version, json_size) end
end

-- POST /v2/models/NAME[/versions/VERSION]/infer, whose path nginx.conf takes apart
function door.infer()
    local var = ngx.var
    local name, version = var.kserve_model, var.kserve_version
    local model = door.models[name]
    if not model then return end
    enter(name, version ~= "" and version or model.version, var.http_inference_header_content_length or "")
end

return door
