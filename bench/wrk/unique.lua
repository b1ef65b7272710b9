-- Chat requests that are all different, in content and in length; every eighth one is streamed.
-- Arguments: key, model, streamed model, number of the first request.
require("report")

local count, models, words

function init(args)
  wrk.method = "POST"
  wrk.headers["Content-Type"] = "application/json"
  wrk.headers["Authorization"] = "Bearer " .. args[1]
  models = { args[2], args[3] }
  count = tonumber(args[4])
  words = {}
  for i = 1, 400 do words[i] = string.format("word%03d", (i * 7919) % 1000) end
end

function request()
  count = count + 1
  local streamed = count % 8 == 0
  local text = table.concat(words, " ", 1, 1 + (count * 31) % 400)
  return wrk.format(nil, nil, nil, string.format(
    '{"model":"%s","messages":[{"role":"user","content":"%d: %s"}],"max_tokens":%d,"user":"u%d","stream":%s}',
    models[streamed and 2 or 1], count, text, 16 + count % 64, count, tostring(streamed)))
end
