package events

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/notifyd/notifyd/cmd/internal/command"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/cmd/internal/destinations"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/safecall"
	"github.com/notifyd/notifyd/ops"
)

// NewTemplate returns the command template.
func NewTemplate(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "template",
		Short:   "Try out the templates of a destination",
		Example: "  notifyd template test --destination mail --event event.json",
	}
	cmd.AddCommand(newTemplateTestCmd(a))
	return cmd
}

func newTemplateTestCmd(a *command.App) *cobra.Command {
	var name, path string
	var open bool

	cmd := &cobra.Command{
		Use:   "test",
		Short: "Show what would be sent to a destination for an event",
		Long: `test prints what would be sent to the destination for an event. Nothing is sent, and
neither the destination nor the database is contacted.

FILE is JSON with the columns of outbox_events: event_type and payload, or payload_bytes
in base64, and optionally id, aggregate_type, aggregate_id, content_type, headers and created_at. A line of the destination
type "log" will do. - reads standard input.

With --open the HTML of a mail, or its text if it has no HTML, is written to a file in the
folder for temporary files instead, and the path is printed. If standard output is a
terminal, the file is also opened, with xdg-open or open. The file stays.

Where the route that leads there has a condition (when), it says on standard error whether
the event meets it. It exits with 1 if the event could not be sent, as when a template or
that condition fails.`,
		Example: "  notifyd template test --destination mail --event event.json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case name == "":
				return command.UsageErrorf("--destination is missing: name one of the configuration")
			case path == "":
				return command.UsageErrorf("--event is missing: name a file, or - for standard input")
			}

			c, _, err := a.Load()
			if err != nil {
				return err
			}

			event, err := readEvent(path, cmd.InOrStdin())
			if err != nil {
				return err
			}

			event.Destination = name
			met, err := conditions(c, name, event) // before the templates, as a relay does
			if err != nil {
				return err
			}

			if met != "" {
				cmd.PrintErrln(met)
			}

			if open {
				return openPage(cmd, c, name, event)
			}

			text, err := Preview(c, name, event)
			if err != nil {
				return err
			}

			_, err = fmt.Fprintln(cmd.OutOrStdout(), strings.TrimRight(command.Lines(text), "\n"))
			return err
		},
	}

	command.AddDestination(cmd, &name)
	cmd.Flags().StringVar(&path, "event", "", "`file` with the event, - for standard input")
	cmd.Flags().BoolVar(&open, "open", false, "write the HTML of a mail to a file, and show it in a browser")

	return cmd
}

// conditions describes whether the event meets the condition of the route to the destination. Without a route or a
// condition it returns an empty text.
func conditions(c *config.Config, name string, e *delivery.Event) (string, error) {
	for _, r := range c.RoutesOf(e.Type) {
		f := r.Filter()
		if f == nil || !slices.Contains(r.To, name) {
			continue
		}

		met, err := f.Match(&delivery.Candidate{Event: e})
		switch {
		case err != nil:
			return "", fmt.Errorf("the event would be a dead letter of %s: %w", name, err)
		case met:
			return fmt.Sprintf("the event meets the condition of its route: %s", f), nil
		default:
			return fmt.Sprintf("the event would not be sent: it does not meet the condition of its route: %s", f), nil
		}
	}

	return "", nil
}

// Preview opens the destination, which makes no connection, and asks it.
func Preview(c *config.Config, name string, e *delivery.Event) (text string, err error) {
	kind, h, err := openDestination(c, name)
	if err != nil {
		return "", err
	}
	if closer, ok := h.(io.Closer); ok {
		defer func() { err = errors.Join(err, closer.Close()) }()
	}

	p, ok := delivery.As[delivery.Previewer](h)
	if !ok {
		return "", fmt.Errorf("the destination type %q cannot show what it would send", kind)
	}

	if wrong := safecall.Call("Preview", func() { text, err = p.Preview(e) }); wrong != nil {
		return "", wrong
	}

	return text, err
}

// openDestination opens a destination, and returns its type. The caller closes the handler, if it is an io.Closer.
func openDestination(c *config.Config, name string) (kind string, h delivery.Handler, err error) {
	i := slices.IndexFunc(c.Destinations, func(d config.Destination) bool { return d.Name == name })
	if i < 0 {
		return "", nil, command.UsageErrorf("there is no destination %q: the configuration has %s",
			name, strings.Join(command.NamesOf(c), ", "))
	}
	h, err = destinations.Open(c.Destinations[i], slog.New(slog.DiscardHandler))
	return c.Destinations[i].Type, h, err
}

// EventFile is the form of an event in a file.
type EventFile struct {
	ID            int64             `json:"id"`
	EventID       int64             `json:"event_id"` // as the destination type log writes it
	EventType     string            `json:"event_type"`
	AggregateType string            `json:"aggregate_type"`
	AggregateID   string            `json:"aggregate_id"`
	Payload       json.RawMessage   `json:"payload"`
	PayloadBytes  []byte            `json:"payload_bytes"` // in base64, as "notifyd events show -o json" has it
	ContentType   string            `json:"content_type"`
	Headers       map[string]string `json:"headers"`
	CreatedAt     time.Time         `json:"created_at"`
	Attempt       int               `json:"attempt"`
	Replay        int               `json:"replay"`
	Destination   string            `json:"destination"`
}

// readEvent reads an event; one without an id has the id 1.
func readEvent(path string, stdin io.Reader) (*delivery.Event, error) {
	arg := "@" + path
	from := path
	if path == "-" {
		arg = path
		from = "standard input"
	}
	data, err := command.ReadPayload(arg, stdin)
	if err != nil {
		return nil, err
	}

	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	var f EventFile
	if err := dec.Decode(&f); err != nil {
		return nil, fmt.Errorf("%s is not an event: %w", from, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s holds more than one event", from)
	}

	return f.event(from)
}

// event returns the event of a file, whose name is for messages.
func (f *EventFile) event(from string) (*delivery.Event, error) {
	switch {
	case f.EventType == "":
		return nil, fmt.Errorf(`%s has no "event_type"`, from)
	case f.Payload == nil && f.PayloadBytes == nil:
		return nil, fmt.Errorf(`%s has no "payload"`, from)
	case f.Payload != nil && f.PayloadBytes != nil:
		return nil, fmt.Errorf(`%s has "payload" and "payload_bytes": an event has one of them`, from)
	}

	e := &delivery.Event{
		ID:            f.ID,
		Type:          f.EventType,
		AggregateType: f.AggregateType,
		AggregateID:   f.AggregateID,
		Headers:       f.Headers,
		CreatedAt:     f.CreatedAt,
		Attempt:       max(1, f.Attempt),
		Replay:        f.Replay,
	}
	if e.ID == 0 {
		e.ID = max(1, f.EventID)
	}
	if e.CreatedAt.IsZero() {
		e.CreatedAt = time.Now()
	}

	columns := ops.Event{Payload: f.Payload, PayloadBytes: f.PayloadBytes, ContentType: f.ContentType}
	e.Payload, e.ContentType = columns.Content()
	if f.Payload != nil && !e.IsJSON() {
		return nil, fmt.Errorf(`%s has "payload" with the content type %q, which is not that of JSON: `+
			`the table takes such a payload in payload_bytes alone`, from, f.ContentType)
	}
	return e, nil
}
