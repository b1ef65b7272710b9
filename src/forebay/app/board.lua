-- Tells the boards of all machines what one of them says.
--
-- KEYS[1] is the prefix of all keys and channels, with a hash tag; no key is read or written.  ARGV[1] is the
-- message.  What returns is how many heard it from this server.

return redis.call('PUBLISH', KEYS[1] .. ':board', ARGV[1])
