package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"
)

// An exchange of the type x-delayed-message, which a plugin of RabbitMQ has, keeps a message with the header x-delay for
// as many milliseconds and routes it then. The broker therefore returns each such message as unroutable if it is mandatory,
// and the protocol does not tell the type of an exchange.
const (
	delayedType = "x-delayed-message"
	delayHeader = "x-delay"
)

// maxDelay is the longest delay of the plugin, in milliseconds. It routes a message with a longer one at once.
const maxDelay = 1<<32 - 1

// isDelay reports whether the plugin keeps a message with this header.
func isDelay(header string) bool {
	ms, err := strconv.ParseInt(header, 10, 64)
	return err == nil && ms > 0 && ms <= maxDelay
}

// delays is the knowledge about exchanges that have returned a delayed message.
type delays struct {
	mu sync.Mutex
	// by has nil for an exchange that keeps delayed messages, a failure at stageReturned for one that keeps none, and a
	// failure at stageDelay where the broker does not say.
	by map[string]*failure
}

// of returns the answer about an exchange; known is false before ask.
func (d *delays) of(exchange string) (f *failure, known bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f, known = d.by[exchange]
	return f, known
}

// forget is called for a new connection: exchanges may have been made again, with other types.
func (d *delays) forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	maps.DeleteFunc(d.by, func(_ string, f *failure) bool { return f == nil || f.at != stageDelay })
}

// ask finds out whether an exchange keeps delayed messages.
func (d *delays) ask(ctx context.Context, c *connection, exchange string) *failure {
	var f *failure
	switch is, err := askDelay(ctx, c, exchange); {
	case err != nil:
		text := fmt.Sprintf("exchange %q has returned a message with the header %s: %v "+
			"(give the user the right to configure the exchange, or set unroutable: %s)", exchange, delayHeader, err, UnroutableDrop)
		f = &failure{at: stageDelay, text: c.target.clean(text)}
	case !is:
		f = &failure{at: stageReturned}
	}

	d.mu.Lock()
	defer d.mu.Unlock()
	if d.by == nil {
		d.by = make(map[string]*failure)
	}
	d.by[exchange] = f
	return f
}

// askDelay declares the exchange with the type x-delayed-message, and without the argument that the type requires: the broker
// compares the types if there is such an exchange, and makes none if there is not. An error means that it does not say.
func askDelay(ctx context.Context, c *connection, exchange string) (is bool, err error) {
	stop := context.AfterFunc(ctx, func() { c.abort(ended(ctx, stageConfirm)) }) // the library ignores contexts
	defer stop()

	ch, err := c.conn.Channel()
	if err != nil {
		return false, err
	}

	err = ch.ExchangeDeclare(exchange, delayedType, true, false, false, false, nil)
	reply, ok := errors.AsType[*amqp.Error](err)
	switch {
	case err == nil:
		_ = ch.Close() // a courtesy
		return true, nil
	case ok && reply.Code == amqp.PreconditionFailed && isOtherProperty(reply.Reason):
		return true, nil
	case ok && (reply.Code == amqp.PreconditionFailed || reply.Code == amqp.CommandInvalid):
		return false, nil // of another type, or gone; or the broker has no such type
	default:
		return false, err
	}
}

// isOtherProperty reports whether an exchange has the type that was declared, and another property is not the same. The
// broker compares the type first.
func isOtherProperty(reason string) bool {
	return strings.Contains(reason, "inequivalent arg") && !strings.Contains(reason, "inequivalent arg 'type'")
}
