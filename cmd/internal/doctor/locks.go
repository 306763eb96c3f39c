package doctor

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/store"
)

// checkLocks looks for sessions that are not relays and have a lock that relays need. Every role
// that may connect can take one, so the check lists them.
func checkLocks(ctx context.Context, e *exam) (string, []Finding, error) {
	holders, err := store.ReadForeignHolders(ctx, e.conn, e.Schema)
	if err != nil {
		return "", nil, err
	}

	var findings []Finding
	for _, s := range holders {
		findings = append(findings, found(Error, e.without(s), "A session that is not a relay has a lock that relays "+
			"need, %s: %s.", s, harm(s.Kind)))
	}

	var all []string
	for _, kind := range store.LockKinds() {
		all = append(all, fmt.Sprintf("%s (%s)", kind, harm(kind)))
	}

	return "No session but those of relays has a lock that relays need. Every role that may connect can " +
		"take them: " + strings.Join(all, ", ") + ".", findings, nil
}

// harm describes the failure while a foreign session has a lock.
func harm(kind store.LockKind) string {
	switch kind {
	case store.LockNotify:
		return "events are not announced, and found by polling alone"
	case store.LockListen:
		return "relays cannot listen and find events by polling alone, or writers notify while no relay listens"
	case store.LockLife:
		return "a relay that has died counts as alive until its leases end, or one cannot show that it is alive"
	case store.LockMode:
		return "no relay can start or connect again"
	case store.LockChange:
		return "no migration and no change of the mode can begin"
	default:
		return "its purpose is unknown"
	}
}

// without returns the cure.
func (e *exam) without(s store.ForeignHolder) string {
	if s.PID == 0 {
		return "ROLLBACK PREPARED: SELECT gid, owner FROM pg_prepared_xacts names it"
	}

	return fmt.Sprintf("SELECT pg_terminate_backend(%d), and let only roles connect that need it: REVOKE CONNECT ON "+
		"DATABASE %s FROM PUBLIC",
		s.PID, pgx.Identifier{e.conn.Config().Database}.Sanitize())
}
