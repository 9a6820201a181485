-- Store the response of a request in progress, and drop what the tenant has too much of, the oldest first.
-- KEYS: record, index (record ids by the time they were stored), sizes (bytes by record id, and `total`)
-- ARGV: token, record id, response, keep (ms), most records, most bytes, prefix of the tenant's records
if redis.call('GET', KEYS[1]) ~= 'P' .. ARGV[1] then return 0 end
local keep, most, most_bytes = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local function drop(id)
  redis.call('DEL', ARGV[7] .. id)
  redis.call('ZREM', KEYS[2], id)
  redis.call('HINCRBY', KEYS[3], 'total', -(tonumber(redis.call('HGET', KEYS[3], id)) or 0))
  redis.call('HDEL', KEYS[3], id)
end

for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now - keep, 'LIMIT', 0, 100)) do drop(id) end
redis.call('SET', KEYS[1], 'D' .. ARGV[3], 'PX', keep)
redis.call('ZADD', KEYS[2], now, ARGV[2])
redis.call('HSET', KEYS[3], ARGV[2], #ARGV[3])
local total = redis.call('HINCRBY', KEYS[3], 'total', #ARGV[3])
while redis.call('ZCARD', KEYS[2]) > 1 and (redis.call('ZCARD', KEYS[2]) > most or total > most_bytes) do
  drop(redis.call('ZRANGE', KEYS[2], 0, 0)[1])
  total = tonumber(redis.call('HGET', KEYS[3], 'total'))
end
redis.call('PEXPIRE', KEYS[2], keep)
redis.call('PEXPIRE', KEYS[3], keep)
return 1
