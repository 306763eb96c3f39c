package doctor

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/notifyd/notifyd/internal/cli"
	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/safecall"
	"github.com/notifyd/notifyd/internal/status"
)

// Destination is a destination of the configuration.
type Destination struct {
	Name, Type string
	// Check connects as a delivery does and sends nothing; nil where the type has no
	// connection.
	Check func(ctx context.Context) error
	// Describe returns the parts that Check tests and those that it does not; nil if unknown. See
	// delivery.CheckDescriber.
	Describe func() (tested, untested string)
	// Warnings are settings that are allowed but probably not intended. See config.Warner.
	Warnings []error
	// Total reports that the destination gets all events one after the other.
	Total bool
	// DeadLettersTo is the destination that receives its dead letters; empty if none does.
	DeadLettersTo string
	// MaxBytes is the limit of a message, in bytes; 0 for no limit.
	MaxBytes int
}

const (
	// destinationTimeout bounds the check of one destination.
	destinationTimeout = 15 * time.Second
	// destinationsAtOnce bounds the number of concurrent checks.
	destinationsAtOnce = 8
)

// checkDestinations connects to all destinations, several at once, and reports the state of
// the deliveries to each.
func (e *exam) checkDestinations(ctx context.Context) []Finding {
	relay := status.Scrape(ctx, e.Admin, e.Outbox)
	findings := make([]Finding, len(e.Destinations))
	turns := make(chan struct{}, destinationsAtOnce)
	var wg sync.WaitGroup

	for i, d := range e.Destinations {
		wg.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			findings[i] = d.examine(ctx)
			findings[i].Check = "destination " + d.Name
			e.deliveries(&findings[i], &d, relay)
		})
	}

	wg.Wait()
	return findings
}

// examine connects to the destination, and reports the result of the connection.
func (d Destination) examine(ctx context.Context) Finding {
	if d.Check == nil {
		return found(OK, "", "The type %s has nothing to connect to.", d.Type)
	}

	ctx, cancel := context.WithTimeoutCause(ctx, destinationTimeout, fmt.Errorf("there was no answer within %v", destinationTimeout))
	defer cancel()

	var err error
	if p := safecall.Call("the check", func() { err = d.Check(ctx) }); p != nil {
		err = p
	}

	if err != nil {
		return found(Error, d.cure(), "The destination cannot be used from here: %s.", oneLine(safecall.Text(err)))
	}

	tested := "the type " + d.Type + " does not describe its check"
	untested := ""
	if d.Describe != nil {
		if p := safecall.Call("DescribeCheck", func() { tested, untested = d.Describe() }); p != nil {
			tested = oneLine(safecall.Text(p))
		}
	}

	switch {
	case tested == "":
		return found(OK, "", "Nothing can be tested. Not tested: %s.", untested)
	case untested == "":
		return found(OK, "", "The check found no obstacle. Tested: %s.", tested)
	default:
		return found(OK, "", "The check found no obstacle. Tested: %s. Not tested: %s.", tested, untested)
	}
}

func (d Destination) cure() string {
	return fmt.Sprintf("fix destinations.%s of the configuration, or the server that it names", d.Name)
}

// deliveries adds to a finding the state of the deliveries to a destination, by the tables and the
// relay: they prove more than the check can.
func (e *exam) deliveries(f *Finding, of *Destination, relay *status.Relay) {
	name := of.Name
	report := func(s Severity, cure, format string, args ...any) {
		f.Text += " " + fmt.Sprintf(format, args...)
		if f.Severity != Error {
			f.Severity = s
		}
		if f.Cure == "" {
			f.Cure = cure
		}
	}

	for _, w := range of.Warnings {
		report(Warning, "check destinations."+name+"."+field.Path(w)+" of the configuration", "%s.", oneLine(w.Error()))
	}

	if trouble, severity := relay.Trouble(name, &e.waits); trouble != "" {
		of := Warning
		if severity == status.Error {
			of = Error
		}
		report(of, "fix what the last error names, there or in destinations."+name+" of the configuration",
			"The relay at %s says: %s.", relay.Address, trouble)
	}

	d := e.waits.Destination(name)
	if p := d.Pause; p != nil {
		report(Warning, "notifyd resume "+name, "It is paused, since %s, by %s%s.", cli.Moment(p.Since), p.By, reason(p.Reason))
	}

	if l := d.LastError; l != nil {
		attempt := "no attempt was counted"
		if l.Attempts > 0 {
			attempt = fmt.Sprintf("attempt %d", l.Attempts)
		}
		of := fmt.Sprintf(" (event %d, %s)", l.EventID, attempt)
		if l.EventID == 0 {
			of = ""
		}

		report(Warning, "fix what the last error names, there or in destinations."+name+" of the configuration",
			"The last error of a delivery that waits, %v ago%s: %s.", e.ago(l.At), of, oneLine(l.Text))
	}

	if len(d.DeadLetters) > 0 {
		g := d.DeadLetters[0]
		report(Warning, "fix the cause, then notifyd dlq replay --destination "+name,
			"Dead letters: %v; the last error of most of them (event %d, %v ago): %s.", d.Dead, g.EventID, e.ago(g.At), oneLine(g.Error))
		if of.DeadLettersTo != "" {
			f.Text += " Dead letters go to " + of.DeadLettersTo + "."
		}
	}
}

// ago is a time in the past by the clock of the database.
func (e *exam) ago(t time.Time) string { return cli.Age(e.waits.At.Sub(t)) }

func reason(text string) string {
	if text == "" {
		return ""
	}
	return ": " + oneLine(text)
}

// checkUnconfigured looks for deliveries to destinations that the configuration does not have.
func checkUnconfigured(_ context.Context, e *exam) (string, []Finding, error) {
	var findings []Finding
	for i := range e.waits.Destinations {
		d := &e.waits.Destinations[i]
		if e.configured(d.Name) {
			continue
		}

		if stored := d.Retry.Plus(d.Running).Plus(d.Parked); stored.N > 0 {
			findings = append(findings, found(Warning, status.Restore(d.Name),
				"The configuration has no destination %s, and deliveries wait for it: %v.", d.Name, stored))
		}

		if d.Dead.N > 0 {
			findings = append(findings, found(Note, "notifyd dlq list --destination "+d.Name,
				"The configuration has no destination %s, and there are dead letters of it: %v.", d.Name, d.Dead))
		}

		if d.Pause != nil {
			findings = append(findings, found(Note, "notifyd resume "+d.Name,
				"%s is paused, and the configuration has no destination of that name.", d.Name))
		}
	}

	return "No delivery waits for a destination that is not configured.", findings, nil
}
