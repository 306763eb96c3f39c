// Package destinations has the settings of each destination type that a configuration file can name, and opens the
// handlers that they describe. A type is a row of [Registry], and a file here if it has more than the others.
package destinations

import (
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
)

// destination is the product of every entry of [Registry]: settings that can
// open the handler they describe.
type destination interface {
	config.Settings
	config.Effective
	// open makes the handler, without a connection. The caller closes it, if it is
	// an io.Closer.
	open(options ...handlers.Option) (delivery.Handler, error)
}

// Open returns the handler of a destination. It opens no connection. The handler logs to log, with the destination's
// name. If the handler is an io.Closer, the caller closes it. Settings that [Registry] does not know are an error.
func Open(d config.Destination, log *slog.Logger) (delivery.Handler, error) {
	s, ok := d.Settings.(destination)
	if !ok {
		return nil, fmt.Errorf("type %q cannot be opened", d.Type)
	}
	return s.open(handlers.WithLogger(log.With("destination", d.Name)))
}

// CloseAll closes the closers of handlers, one after the other, and joins their errors.
func CloseAll(closers []io.Closer) error {
	var errs []error
	for _, c := range closers {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}
