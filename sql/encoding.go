package outboxsql

// NoEncoding describes the problem of a database without an encoding.
const NoEncoding = "The database has the encoding SQL_ASCII: PostgreSQL does not know what its bytes mean, and an event that was not written in UTF-8 leaves as it is, in JSON too."
