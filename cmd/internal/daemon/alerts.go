package daemon

import (
	"context"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/cmd/internal/alert"
	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/delivery"
)

// alerts are the configured alerter, if any, and the destinations to close after it.
type alerts struct {
	alerter *alert.Alerter // nil without alerts
	closers []io.Closer
}

// newAlerts opens the destinations a second time: an alert does not queue up
// behind events. The closers are to be closed even if there is an error.
func newAlerts(c *config.Config, open opener, outbox string, log *slog.Logger) (a alerts, err error) {
	if len(c.Alerts.To) == 0 {
		return a, nil
	}

	var targets []alert.Target
	for _, d := range c.AlertTargets() {
		h, closer, err := open("alerts", d)
		if err != nil {
			return a, c.Wrong(d.Name, err)
		}
		a.closers = append(a.closers, closer)
		targets = append(targets, alert.Target{Name: d.Name, Handler: h})
	}

	source, err := os.Hostname()
	if err != nil {
		source = "" // a message without it is better than none
	}

	if outbox != "" {
		source = strings.TrimSpace("outbox " + outbox + " " + source)
	}

	a.alerter, err = alert.New(alert.Config{
		Kinds:         kindsOf(c.Alerts.On),
		Every:         c.Alerts.Every,
		OldestWaiting: c.Alerts.OldestWaiting,
		Source:        source,
	}, targets, log)
	return a, err
}

// kindsOf translates the values of alerts.on.
func kindsOf(words []string) []delivery.IncidentKind {
	var kinds []delivery.IncidentKind
	for _, word := range words {
		switch word {
		case "dead_letter":
			kinds = append(kinds, delivery.IncidentDead)
		case "destination":
			kinds = append(kinds, delivery.IncidentDown, delivery.IncidentUp, delivery.IncidentRepeats)
		case "database":
			kinds = append(kinds, delivery.IncidentDatabaseLost, delivery.IncidentDatabaseBack,
				delivery.IncidentRefused, delivery.IncidentAccepted)
		case "listener":
			kinds = append(kinds, delivery.IncidentListenerLost, delivery.IncidentListenerBack)
		case "relay":
			kinds = append(kinds, delivery.IncidentHang, delivery.IncidentHangOver)
		case "retention":
			kinds = append(kinds, delivery.IncidentHeldBack)
		case "waiting":
			kinds = append(kinds, delivery.IncidentStale, delivery.IncidentCaughtUp)
		}
	}

	return kinds
}

// observer returns the observer of the relay, nil without alerts.
func (a alerts) observer() delivery.Observer {
	if a.alerter == nil {
		return nil
	}
	return a.alerter
}

// start runs the alerter; stop ends it, after it has sent the pending alerts.
func (a alerts) start(ctx context.Context, relay *notifyd.Relay) (stop func()) {
	if a.alerter == nil {
		return func() {}
	}

	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // it outlives the relay, to report its end
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = a.alerter.Run(ctx, relay.OldestWaiting) // returns the end of ctx only
	}()
	return func() {
		cancel()
		<-done
	}
}
