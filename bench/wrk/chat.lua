-- One fixed chat request, again and again.  Arguments: key, body.  No Lua runs for a request.
require("report")

function init(args)
  wrk.method = "POST"
  wrk.headers["Content-Type"] = "application/json"
  wrk.headers["Authorization"] = "Bearer " .. args[1]
  wrk.body = args[2]
end
