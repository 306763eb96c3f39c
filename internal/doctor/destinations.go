package doctor

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/notifyd/notifyd/internal/guard"
)

// Destination is a destination of the configuration.
type Destination struct {
	Name, Type string
	// Check connects as a delivery does and sends nothing; nil where the type has no
	// connection.
	Check func(ctx context.Context) error
	// MaxBytes is the limit of a message, in bytes; 0 for no limit.
	MaxBytes int
}

const (
	// destinationTimeout bounds the check of one destination.
	destinationTimeout = 15 * time.Second
	// destinationsAtOnce bounds the number of concurrent checks.
	destinationsAtOnce = 8
)

// checkDestinations connects to all destinations, several at once.
func checkDestinations(ctx context.Context, all []Destination) []Finding {
	findings := make([]Finding, len(all))
	turns := make(chan struct{}, destinationsAtOnce)
	var wg sync.WaitGroup
	for i, d := range all {
		wg.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			findings[i] = d.examine(ctx)
			findings[i].Check = "destination " + d.Name
		})
	}
	wg.Wait()
	return findings
}

func (d Destination) examine(ctx context.Context) Finding {
	if d.Check == nil {
		return found(OK, "", "The type %s has nothing to connect to.", d.Type)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, destinationTimeout, fmt.Errorf("there was no answer within %v", destinationTimeout))
	defer cancel()
	var err error
	if p := guard.Call("the check", func() { err = d.Check(ctx) }); p != nil {
		err = p
	}
	if err != nil {
		return found(Error, fmt.Sprintf("fix destinations.%s of the configuration, or the server that it names", d.Name), "The destination cannot be used: %s.", oneLine(guard.Text(err)))
	}
	return found(OK, "", "It accepts the connection and the credentials.")
}
