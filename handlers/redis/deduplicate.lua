-- Adds events to the stream KEYS[1], but for those that it has already. KEYS[2]
-- and KEYS[3] are sets of the ids that were added: the recent ones, and those
-- before them. ARGV[1] is how many ids make the recent ones the older ones. Then
-- come, for each event, its id, the number n of the arguments of XADD behind the
-- key, and these n. Returns the number of entries added.
local stream, recent, older = KEYS[1], KEYS[2], KEYS[3]

-- No entry without its id: what keeps ids from being written has to show before the
-- first entry. Redis looks at maxmemory before the first write only.
local reply = redis.pcall('SADD', recent, '')
if type(reply) == 'table' and reply.err then
  return reply
end
-- A stream that somebody has deleted has none of the events.
if redis.call('EXISTS', stream) == 0 then
  redis.call('UNLINK', recent, older)
end

local added, isNew = {}, {}

local function note()
  if #added > 0 then
    redis.call('SADD', recent, unpack(added))
  else
    -- WAIT waits for what its client has written.
    redis.call('SREM', recent, '')
  end
  if redis.call('SCARD', recent) > tonumber(ARGV[1]) then
    redis.call('UNLINK', older)
    redis.call('RENAME', recent, older)
  end
end

local at = 2
while at < #ARGV do
  local id, first, last = ARGV[at], at + 2, at + 1 + tonumber(ARGV[at + 1])
  local isCopy = isNew[id] or redis.call('SISMEMBER', recent, id) == 1 or redis.call('SISMEMBER', older, id) == 1
  if not isCopy then
    reply = redis.pcall('XADD', stream, unpack(ARGV, first, last))
    if type(reply) == 'table' and reply.err then
      note()
      return reply
    end
    added[#added + 1], isNew[id] = id, true
  end
  at = last + 1
end
note()
return #added
