package store

import "errors"

const (
	// lockNotAvailable is the SQLSTATE of a lock_timeout.
	lockNotAvailable = "55P03"
)

// IsDown reports whether err says that the database could not be reached, as
// opposed to an answer from it.
func IsDown(err error) bool {
	var answer interface{ SQLState() string }
	if !errors.As(err, &answer) {
		return true
	}
	switch class := answer.SQLState(); {
	case len(class) < 2:
		return false
	case class == lockNotAvailable, class == readOnly: // somebody has locked the table for a while; or a failover is under way
		return true
	default: // connection exception, insufficient resources, operator intervention
		return class[:2] == "08" || class[:2] == "53" || class[:2] == "57"
	}
}
