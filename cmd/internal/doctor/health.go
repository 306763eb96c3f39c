package doctor

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/notifyd/notifyd/internal/admin"
)

// healthTimeout bounds the query: the relay is on this machine, or not there.
const healthTimeout = 3 * time.Second

// checkHealth asks the relay whose admin address is configured whether it is ready. known reports that the outage of the
// database has a finding already: a relay that waits for it gets only a note.
func checkHealth(ctx context.Context, a admin.Access, known bool) Finding {
	ctx, cancel := context.WithTimeoutCause(ctx, healthTimeout, fmt.Errorf("no answer within %v", healthTimeout))
	defer cancel()
	code, body, err := a.Get(ctx, "/readyz?verbose")
	switch {
	case err != nil:
		return found(OK, "", "No relay answers at %s, so that its health is unknown.", a.Address)
	case code == http.StatusOK:
		return found(OK, "", "The relay at %s is ready.", a.Address)
	}

	failures := admin.Failures(string(body))
	if outage, is := strings.CutPrefix(strings.Join(failures, "; "), "database: "); is && known && len(failures) == 1 {
		return found(Note, "", "The relay at %s waits: %s.", a.Address, outage)
	}

	return found(Error, "see NotifydHangs in docs/runbook.md; a relay that waits for its database or has just started needs nothing",
		"The relay at %s is not ready: %s.", a.Address, strings.Join(failures, "; "))
}
