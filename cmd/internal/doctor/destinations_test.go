package doctor

import (
	"context"

	"github.com/notifyd/notifyd/internal/field"
)

// deliveryTroubles are faults of deliveries: waiting events show more of a destination than its check.
func deliveryTroubles() map[string]illness {
	return map[string]illness{
		"unconfigured": {func(p *patient, o *Options) {
			o.Route, o.Destinations = func(string) []string { return nil }, []Destination{{Name: "mail", Type: "log"}}
			p.Exec(`INSERT INTO outbox_events (id, event_type, payload, state) VALUES (1, 'a', '1', 'deferred')`)
			p.Exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state) VALUES (1, 'gone', 'a', 'retry')`)
		}, "unconfigured", Warning, "has no destination gone, and deliveries wait for it: 1.", "put it back into the configuration"},
		"unconfigured dead letters": {func(p *patient, o *Options) {
			o.Route, o.Destinations = func(string) []string { return nil }, []Destination{{Name: "mail", Type: "log"}}
			p.Exec(`INSERT INTO outbox_events (id, event_type, payload, state) VALUES (1, 'a', '1', 'done')`)
			p.Exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state) VALUES (1, 'gone', 'a', 'dead')`)
		}, "unconfigured", Note, "there are dead letters of it: 1.", "notifyd dlq list --destination gone"},
		"parked in a queue": {func(p *patient, _ *Options) {
			p.Exec(`INSERT INTO outbox_events (id, event_type, payload, state) VALUES (1, 'a', '1', 'deferred')`)
			p.Exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, ordering_key) VALUES (1, 'mail', 'a', 'parked', 'order/7')`)
		}, "orphans", Error, "are parked in this queue, among the first 100000: 1, the first one of event 1.", "restart a relay"},
		"dead letters": {func(p *patient, o *Options) {
			o.Destinations = []Destination{{Name: "mail", Type: "log", DeadLettersTo: "parking"}}
			p.Exec(`INSERT INTO outbox_events (id, event_type, payload, state) VALUES (1, 'a', '1', 'done')`)
			p.Exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, last_error) VALUES (1, 'mail', 'a', 'dead', '550')`)
		}, "destination mail", Warning, " ago): 550. Dead letters go to parking.", "dlq replay --destination mail"},
		"paused": {func(p *patient, o *Options) {
			o.Destinations = []Destination{{Name: "mail", Type: "log"}}
			p.Exec(`INSERT INTO outbox_pauses (destination, paused_by, reason) VALUES ('mail', 'ann', E'it\nmoves')`)
		}, "destination mail", Warning, "by ann: it moves.", "notifyd resume mail"},
		"settings": {func(_ *patient, o *Options) {
			o.Destinations = []Destination{{Name: "mail", Type: "email", Warnings: []error{field.Errorf("helo", "has no dot")}}}
		}, "destination mail", Warning, " helo: has no dot.", "check destinations.mail.helo of the configuration"},
		"refused": {func(p *patient, o *Options) {
			o.Destinations = []Destination{{Name: "mail", Type: "webhook", Check: func(context.Context) error { return nil }, Describe: func() (string, string) { return "the door", "the key" }}}
			p.Exec(`INSERT INTO outbox_events (id, event_type, payload, state) VALUES (1, 'a', '1', 'deferred')`)
			p.Exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, error_class, last_error) VALUES (1, 'mail', 'a', 'retry', 'destination', '401')`)
		}, "destination mail", Warning, " ago (event 1, no attempt was counted): 401.", "destinations.mail"},
	}
}
