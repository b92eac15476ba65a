-- The action lua.limit: asks limiter-server and sets txn.limit_status, txn.limit_retry_after,
-- txn.limit_policy and txn.limit.
local server = os.getenv("LIMITER")

local function first(headers, name)
    return headers and headers[name] and headers[name][0] or ""
end

core.register_action("limit", { "http-req" }, function(txn, query)
    local response = core.httpclient():get{
        url = server .. "/forward-auth?" .. query,
        -- In milliseconds, for each of up to four attempts. Without it, HAProxy waits without end
        -- for a limiter-server that does not answer.
        timeout = 500,
        headers = {
            ["host"] = { "localhost" },
            ["x-forwarded-for"] = { txn.f:src() },
            ["x-forwarded-method"] = { txn.f:method() },
            ["x-forwarded-host"] = { txn.sf:req_hdr("host") },
            ["x-forwarded-uri"] = { txn.sf:pathq() },
            -- With configured tokens: ["authorization"] = { "Bearer lim_..." },
        },
    }
    txn:set_var("txn.limit_status", response.status)
    txn:set_var("txn.limit_retry_after", first(response.headers, "retry-after"))
    txn:set_var("txn.limit_policy", first(response.headers, "ratelimit-policy"))
    txn:set_var("txn.limit", first(response.headers, "ratelimit"))
end, 1)
