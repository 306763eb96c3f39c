package status

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/notifyd/notifyd/internal/admin"
	"github.com/notifyd/notifyd/observe"
)

// scrapeTimeout bounds a scrape: the relay is on this machine, or not there.
const scrapeTimeout = 2 * time.Second

// Relay is one relay's report about itself.
type Relay struct {
	Address string `json:"address"`
	// Listening and DatabaseUp report its health; Polling, whether it suppresses the trigger.
	Listening  bool `json:"listening"`
	DatabaseUp bool `json:"database_up"`
	Polling    bool `json:"polling"`
	// Outage is why the database is down for the relay, and since when, as at /readyz; empty while it answers.
	Outage string `json:"outage,omitempty"`
	// Refused are the SQLSTATEs with which the database refuses statements of the relay.
	Refused []string `json:"refused,omitempty"`
	// Withheld describes the outcomes of single events that the database refuses to record, one text for each part of the
	// relay: their number, for how long, and the answer of the database.
	Withheld []string `json:"withheld,omitempty"`
	// Hangs are the reasons of its hangs, as at /readyz; empty while nothing hangs.
	Hangs        []string           `json:"hangs,omitempty"`
	Destinations []RelayDestination `json:"destinations"`

	parts map[string]int // number of parts with refused statements, by SQLSTATE
}

// isOnlyWithheld reports whether all refusals with a SQLSTATE concern single events.
func (r *Relay) isOnlyWithheld(code string) bool {
	n := 0
	for _, text := range r.Withheld {
		if stateIn(text) == code {
			n++
		}
	}
	return r.parts[code] <= n
}

// RelayDestination is a destination of that relay. Counters begin with its start.
type RelayDestination struct {
	Name string `json:"name"`
	// Down reports that the breaker is open, or that a probe is under way.
	Down bool `json:"down"`
	// State is the state of the breaker: closed, open, probing, ramping or throttled; empty if the relay's version does
	// not report it.
	State string `json:"state"`
	// Gap is the time between the starts of two deliveries while the destination is
	// throttled, in seconds; 0 otherwise.
	Gap float64 `json:"throttled_gap_seconds"`
	// ThrottledFor is how long the pause still lasts that the destination has requested, in seconds, and ThrottledBy the
	// event whose answer requested it; 0 otherwise.
	ThrottledFor float64 `json:"throttled_seconds"`
	ThrottledBy  int64   `json:"throttled_by_event"`
	// Blocked reports that the destination has requested a pause of its connection.
	Blocked bool `json:"blocked"`
	// RateLimited reports that deliveries wait for the destination's rate limit.
	RateLimited bool `json:"rate_limited"`
	// Paused reports that the relay honours a pause.
	Paused bool `json:"paused"`
	// DownFor is how long the breaker has not been closed, and NextProbe how long it is until the next
	// delivery may find out whether the destination is up again, both in seconds; 0 otherwise.
	DownFor   float64 `json:"down_seconds"`
	NextProbe float64 `json:"next_probe_seconds"`
	// FailingEvents counts the calls that have failed since an event was delivered, and Failing is how
	// long ago the first of them did, in seconds.
	FailingEvents float64 `json:"failing_events"`
	Failing       float64 `json:"failing_seconds"`
	// Stuck counts the calls of the handler that were abandoned and have not returned.
	Stuck     int     `json:"stuck"`
	Running   int     `json:"running"`
	Queued    int     `json:"queued"`
	Delivered float64 `json:"delivered"`
	// Failed and Dead count failures that cost an attempt, Refused those that did not: the
	// destination was down, or throttled.
	Failed  float64 `json:"failed"`
	Dead    float64 `json:"dead"`
	Refused float64 `json:"refused"`
	// PerSecond is the rate of deliveries since the previous status, and FailedPerSecond that of
	// failures of every kind; nil for the first one.
	PerSecond       *float64 `json:"per_second,omitempty"`
	FailedPerSecond *float64 `json:"failed_per_second,omitempty"`

	more bool // FailingEvents is a lower bound
}

// DestinationOf returns the figures of a destination at a moment, as a scrape of its relay has them, without counters.
func DestinationOf(d *observe.DestinationStats, at time.Time) RelayDestination {
	since := func(moment time.Time) float64 {
		if moment.IsZero() {
			return 0
		}
		return at.Sub(moment).Seconds()
	}
	until := func(moment time.Time) float64 { return max(0, -since(moment)) }

	return RelayDestination{
		Name:          d.Name,
		Down:          d.Down,
		State:         d.State.String(),
		Paused:        d.Paused,
		RateLimited:   d.RateLimited,
		Blocked:       d.Report != nil && d.Report.Blocked,
		Gap:           d.Gap.Seconds(),
		ThrottledFor:  until(d.Trouble.ThrottledUntil),
		ThrottledBy:   d.Trouble.ThrottledBy,
		DownFor:       since(d.Trouble.DownSince),
		NextProbe:     until(d.Trouble.NextProbe),
		FailingEvents: float64(d.Trouble.Failures),
		Failing:       since(d.Trouble.FailingSince),
		Stuck:         d.Stuck,
		Running:       d.Running,
		Queued:        d.Queued,
	}
}

// failuresInARow counts the calls that have failed since an event was delivered.
func (d *RelayDestination) failuresInARow() observe.Count {
	return observe.Count{N: int(d.FailingEvents), More: d.more}
}

// failures counts failures of every kind.
func (d *RelayDestination) failures() float64 { return d.Failed + d.Dead + d.Refused }

// Scrape queries a relay, about one outbox if it has many. It returns nil without an address, or if the answer does not
// come from a relay.
func Scrape(ctx context.Context, a admin.Access, outbox string) *Relay {
	if a.Address == "" {
		return nil
	}

	ctx, cancel := context.WithTimeout(ctx, scrapeTimeout)
	defer cancel()

	// First, because it is answered even where a hang keeps the figures back.
	var hangs, withheld []string
	outage := ""
	code, body, err := a.Get(ctx, "/readyz?verbose")
	if err == nil && code == http.StatusServiceUnavailable {
		for _, reason := range admin.Failures(string(body)) {
			if text, ok := strings.CutPrefix(reason, "relay: "); ok && outbox == "" {
				hangs = append(hangs, text)
			}
			if text, ok := strings.CutPrefix(reason, "database: "); ok && outbox == "" {
				outage = text
			}
		}
	}

	if err == nil && outbox == "" {
		withheld = admin.Advice(string(body), admin.CheckOutcomes)
	}

	var relay *Relay
	code, body, err = a.Get(ctx, "/metrics")
	if err == nil && code == http.StatusOK {
		relay = parseRelay(a.Address, outbox, bytes.NewReader(body))
	}
	if relay == nil && len(hangs) > 0 {
		relay = &Relay{Address: a.Address, DatabaseUp: true}
	}
	if relay != nil {
		relay.Hangs = hangs
		relay.Withheld = withheld
		relay.Outage = outage
		relay.Refused = slices.DeleteFunc(relay.Refused, relay.isOnlyWithheld)
	}
	return relay
}

var (
	sample   = regexp.MustCompile(`^(notifyd_\w+)(?:\{(.*)\})? (\S+)$`)
	sqlState = regexp.MustCompile(`^[0-9A-Z]{5}$`)
	codeIn   = regexp.MustCompile(`SQLSTATE ([0-9A-Z]{5})`)
	label    = regexp.MustCompile(`(\w+)="([^"\\]*)"`)
)

// parseRelay reads the metrics of a relay in the text format of Prometheus, and only the features that a relay uses. It
// returns nil for other metrics.
func parseRelay(address, outbox string, r io.Reader) *Relay {
	relay := &Relay{Address: address, parts: make(map[string]int)}
	known := false
	byName := make(map[string]*RelayDestination)
	own := make(map[string]bool)

	lines := bufio.NewScanner(r)
	for lines.Scan() {
		name, labels, value, isSample := parseSample(lines.Text())
		if !isSample || labels["outbox"] != outbox {
			continue
		}
		known = known || name == "notifyd_database_up"
		relay.set(name, labels, value)

		destination := labels["destination"]
		if destination == "" {
			continue
		}
		if byName[destination] == nil {
			byName[destination] = &RelayDestination{Name: destination}
		}
		byName[destination].set(name, labels, value)
		own[destination] = own[destination] || name == "notifyd_destination_down" // the tables may have deliveries of others, too
	}
	if !known || lines.Err() != nil {
		return nil
	}

	for name, d := range byName {
		if own[name] {
			relay.Destinations = append(relay.Destinations, *d)
		}
	}
	slices.SortFunc(relay.Destinations, func(a, b RelayDestination) int { return cmp.Compare(a.Name, b.Name) })
	return relay
}

// parseSample reads a line of the text format of Prometheus. It reports false for comments, and for samples of
// other programs.
func parseSample(line string) (name string, labels map[string]string, value float64, ok bool) {
	m := sample.FindStringSubmatch(line)
	if m == nil {
		return "", nil, 0, false
	}
	value, err := strconv.ParseFloat(m[3], 64)
	if err != nil {
		return "", nil, 0, false
	}

	labels = make(map[string]string)
	for _, l := range label.FindAllStringSubmatch(m[2], -1) {
		labels[l[1]] = l[2]
	}
	return m[1], labels, value, true
}

func (r *Relay) set(name string, labels map[string]string, value float64) {
	switch name {
	case "notifyd_database_refuses":
		if value > 0 && sqlState.MatchString(labels["code"]) {
			r.Refused = append(r.Refused, labels["code"])
			r.parts[labels["code"]] = int(value)
		}
	case "notifyd_listener_connected":
		r.Listening = value == 1
	case "notifyd_database_up":
		r.DatabaseUp = value == 1
	case "notifyd_notifications_suppressed":
		r.Polling = value == 1
	}
}

func (d *RelayDestination) set(name string, labels map[string]string, value float64) {
	switch name + " " + labels["outcome"] + labels["class"] {
	case "notifyd_destination_down ":
		d.Down = value == 1
	case "notifyd_destination_state ":
		if value == 1 {
			d.State = labels["state"]
		}

	case "notifyd_destination_throttled_gap_seconds ":
		d.Gap = value
	case "notifyd_destination_throttled_seconds ":
		d.ThrottledFor = value
	case "notifyd_destination_throttled_by_event ":
		d.ThrottledBy = int64(value)
	case "notifyd_destination_blocked ":
		d.Blocked = value == 1
	case "notifyd_destination_rate_limited ":
		d.RateLimited = value == 1
	case "notifyd_destination_paused ":
		d.Paused = value == 1

	case "notifyd_destination_down_seconds ":
		d.DownFor = value
	case "notifyd_destination_next_probe_seconds ":
		d.NextProbe = value
	case "notifyd_destination_failing_events ":
		d.FailingEvents = value
	case "notifyd_destination_failing_seconds ":
		d.Failing = value

	case "notifyd_destination_stuck ":
		d.Stuck = int(value)
	case "notifyd_destination_running ":
		d.Running = int(value)
	case "notifyd_destination_queued ":
		d.Queued = int(value)

	case "notifyd_attempts_total destination":
		d.Refused = value
	case "notifyd_deliveries_total delivered":
		d.Delivered = value
	case "notifyd_deliveries_total failed":
		d.Failed = value
	case "notifyd_deliveries_total dead":
		d.Dead = value
	}
}

// destination returns the relay's report about a destination; nil if the relay does not have it.
func (r *Relay) destination(name string) *RelayDestination {
	if r == nil {
		return nil
	}

	i := slices.IndexFunc(r.Destinations, func(d RelayDestination) bool { return d.Name == name })
	if i < 0 {
		return nil
	}
	return &r.Destinations[i]
}

// Throttled returns until when a destination has requested a pause, and the event whose answer requested it; zero without
// one, or if the relay has no such destination. at is the time of the scrape. The relay may be nil.
func (r *Relay) Throttled(name string, at time.Time) (until time.Time, event int64) {
	return r.destination(name).throttled(at)
}

// throttled returns until when the destination has requested a pause, as Throttled does. The report may be nil.
func (d *RelayDestination) throttled(at time.Time) (until time.Time, event int64) {
	if d == nil || d.ThrottledFor <= 0 {
		return time.Time{}, 0
	}
	return at.Add(time.Duration(d.ThrottledFor * float64(time.Second))), d.ThrottledBy
}

// Trouble returns why a destination is down, or for how long no delivery to it has succeeded, by the rules of
// [Status.Problems]; "" if neither applies, or the relay has no such destination. The relay may be nil.
func (r *Relay) Trouble(name string, b *observe.Backlog) (text string, severity Severity) {
	d := r.destination(name)
	left := remaining(b, name)

	switch {
	case d.isDown(left):
		return name + " " + d.down() + prefixed(", ", d.probe()), Error
	case d.isFailing(left, b.At):
		failures := counted(d.failuresInARow(), "failure")

		return fmt.Sprintf("nothing was delivered to %s for %s: %s in a row", name, ago(d.Failing), failures), d.severity(left, b.At)
	default:
		return "", Warning
	}
}

// Rates fills in the rates since an earlier status. A relay that has restarted since then gets no rates.
func (s *Status) Rates(before *Status) {
	seconds := s.At.Sub(before.At).Seconds()
	if s.Relay == nil || before.Relay == nil || seconds <= 0 {
		return
	}

	for i := range s.Relay.Destinations {
		d := &s.Relay.Destinations[i]
		for _, b := range before.Relay.Destinations {
			if b.Name == d.Name && d.Delivered >= b.Delivered && d.failures() >= b.failures() {
				d.PerSecond = new((d.Delivered - b.Delivered) / seconds)
				d.FailedPerSecond = new((d.failures() - b.failures()) / seconds)
			}
		}
	}
}
