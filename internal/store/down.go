package store

import "errors"

const (
	// lockNotAvailable is the SQLSTATE of a lock_timeout.
	lockNotAvailable = "55P03"
)

// IsDown reports whether err means that the database was unavailable, as opposed to an answer from
// it.
func IsDown(err error) bool {
	var answer interface{ SQLState() string }
	if !errors.As(err, &answer) {
		return true
	}
	switch class := answer.SQLState(); {
	case len(class) < 2:
		return false
	case class == lockNotAvailable, class == readOnly: // another session has locked the table for a while, or a failover is in progress
		return true
	default: // connection exception, insufficient resources, operator intervention
		return class[:2] == "08" || class[:2] == "53" || class[:2] == "57"
	}
}
