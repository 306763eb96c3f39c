package rabbitmq

import (
	"cmp"
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"
)

// declare makes the configured declarations on a separate channel: a refusal
// closes the channel.
func (h *Handler) declare(conn *amqp.Connection) error {
	d := h.cfg.Declare
	if d.IsZero() {
		return nil
	}

	ch, err := conn.Channel()
	if err != nil {
		return err
	}

	for _, e := range d.Exchanges {
		args, err := table(e.Arguments)
		if err == nil {
			err = ch.ExchangeDeclare(e.Name, cmp.Or(e.Type, amqp.ExchangeTopic), !e.Transient, false, false, false, args)
		}
		if err != nil {
			return declareError("exchange", e.Name, err)
		}
	}

	for _, q := range d.Queues {
		args, err := table(q.Arguments)
		if err == nil {
			_, err = ch.QueueDeclare(q.Name, !q.Transient, false, false, false, args)
		}
		if err != nil {
			return declareError("queue", q.Name, err)
		}
	}

	for _, b := range d.Bindings {
		args, err := table(b.Arguments)
		if err == nil {
			err = ch.QueueBind(b.Queue, b.RoutingKey, b.Exchange, false, args)
		}
		if err != nil {
			return declareError("binding", b.Exchange+" to "+b.Queue, err)
		}
	}

	return ch.Close()
}

// declareError names the refused declaration with the broker's reply.
func declareError(what, name string, err error) error {
	if reply, ok := errors.AsType[*amqp.Error](err); ok {
		named := *reply
		named.Reason = fmt.Sprintf("%s (%s %q)", reply.Reason, what, name)
		return &named
	}
	return fmt.Errorf("%s %q: %w", what, name, err)
}
