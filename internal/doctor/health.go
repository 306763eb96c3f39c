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

// checkHealth asks the relay whose admin address is configured whether it is ready.
func checkHealth(ctx context.Context, a admin.Access) Finding {
	ctx, cancel := context.WithTimeoutCause(ctx, healthTimeout, fmt.Errorf("no answer within %v", healthTimeout))
	defer cancel()
	code, body, err := a.Get(ctx, "/readyz?verbose")
	switch {
	case err != nil:
		return found(OK, "", "No relay answers at %s, so that its health is unknown.", a.Address)
	case code == http.StatusOK:
		return found(OK, "", "The relay at %s is ready.", a.Address)
	default:
		return found(Error, "see NotifydHangs in docs/runbook.md; a relay that waits for its database or has just started needs nothing",
			"The relay at %s is not ready: %s.", a.Address, strings.Join(admin.Failures(string(body)), "; "))
	}
}
