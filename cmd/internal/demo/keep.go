package demo

import (
	"context"
	"strings"

	outboxsql "github.com/notifyd/notifyd/sql"
)

// invite explains how to use the running relay and mail server.
func (d *demo) invite() {
	cfg := d.pool.Config().ConnConfig

	d.say("\nstill running, until Ctrl-C. Insert an event of your own: its mail is shown here.\n\n")
	d.say("  psql -h %s -p %d -U %s -d %s -c \"INSERT INTO %s.outbox_events (event_type, payload) "+
		"VALUES ('%s', '{\\\"order\\\": 1, \\\"email\\\": \\\"you@example.com\\\", \\\"total_cents\\\": 999}')\"\n",
		cfg.Host, cfg.Port, cfg.User, cfg.Database, d.schema, orderPlaced)
	d.say("  psql -h %s -p %d -U %s -d %s -c \"%s\"\n\n", cfg.Host, cfg.Port, cfg.User, cfg.Database, d.followed())

	if d.Spare == "" {
		d.say("The mail server is for a configuration of your own as well, and asks for no password:\n\n"+
			"  export MAIL_PORT=%d\n\n", d.sink.Port())
		return
	}

	d.say("For a configuration of your own, use this empty database and this mail server, which asks for no password:\n\n")
	d.say("  export DATABASE_URL='%s' MAIL_PORT=%d\n\n", d.Spare, d.sink.Port())
}

// followed returns the query that shows the latest deliveries.
func (d *demo) followed() string {
	if d.Mode == outboxsql.ModeStream {
		return "SELECT destination, head, open, delivered, updated_at FROM " + d.schema + ".outbox_positions LIMIT 5"
	}
	return "SELECT id, event_type, state, processed_at - created_at AS took FROM " + d.schema + ".outbox_events ORDER BY id DESC LIMIT 5"
}

// showMails prints a line for each mail that arrives while it runs. It returns when ctx ends.
func (d *demo) showMails(ctx context.Context) {
	for shown := len(d.sink.Mails()); ; {
		mails, err := d.sink.Wait(ctx, shown+1)
		for _, m := range mails[min(shown, len(mails)):] {
			subject := "(unreadable)"
			if msg, parseErr := m.Parse(); parseErr == nil {
				subject = msg.Subject
			}
			d.say("mail for %s: %s\n", strings.Join(m.To, ", "), subject)
		}

		shown = max(shown, len(mails))
		if err != nil { // ctx has ended
			return
		}
	}
}
