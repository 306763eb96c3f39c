package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/notifyd/notifyd/internal/textview"
	"github.com/notifyd/notifyd/ops"
)

// printer prints the results of "notifyd dlq".
type printer struct {
	out, err io.Writer
	json     bool
}

func (p printer) encode(v any) error {
	enc := json.NewEncoder(p.out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

func (p printer) page(page ops.DeadLetterPage) error {
	next := ""
	if page.Next != nil {
		next = fmt.Sprintf("%s/%d", page.Next.Destination, page.Next.EventID)
	}
	if p.json {
		return p.encode(struct {
			Letters []ops.DeadLetter `json:"letters"`
			Next    string           `json:"next,omitempty"`
		}{page.Letters, next})
	}
	if len(page.Letters) == 0 {
		_, err := fmt.Fprintln(p.out, "no dead letters")
		return err
	}
	rows := [][]string{{"EVENT", "DESTINATION", "TYPE", "DIED", "ATTEMPTS", "REPLAYS", "FINGERPRINT", "ERROR"}}
	for _, l := range page.Letters {
		rows = append(rows, []string{
			fmt.Sprint(l.EventID), l.Destination, l.Type, moment(l.DiedAt), fmt.Sprint(l.Attempts), fmt.Sprint(l.Replays), l.Fingerprint, short(l.Error),
		})
	}
	if err := p.table(rows); err != nil || next == "" {
		return err
	}
	_, err := fmt.Fprintf(p.err, "there are more: --after '%s'\n", clean(next))
	return err
}

func (p printer) groups(groups []ops.DeadLetterGroup) error {
	if p.json {
		return p.encode(struct {
			Groups []ops.DeadLetterGroup `json:"groups"`
		}{groups})
	}
	if len(groups) == 0 {
		_, err := fmt.Fprintln(p.out, "no dead letters")
		return err
	}
	rows := [][]string{{"COUNT", "DESTINATION", "TYPE", "FINGERPRINT", "OLDEST", "NEWEST", "EXAMPLE", "ERROR"}}
	for _, g := range groups {
		rows = append(rows, []string{
			fmt.Sprint(g.Count), g.Destination, g.Type, g.Fingerprint, moment(g.Oldest), moment(g.Newest), fmt.Sprint(g.Example.EventID), short(g.Example.Error),
		})
	}
	return p.table(rows)
}

func (p printer) show(c ops.Case) error {
	if p.json {
		return p.encode(c)
	}
	if err := p.event(&c.Event); err != nil {
		return err
	}
	for _, e := range c.Audit {
		to := ""
		if e.Destination != "" {
			to = " for " + clean(e.Destination)
		}
		_, err := fmt.Fprintf(p.out, "\n%s %s%s by %s (database user %s)\n  %s\n", moment(e.At), e.Action, to, clean(e.Actor), clean(e.DatabaseUser), clean(string(e.Details)))
		if err == nil && e.OldPayload != nil {
			_, err = fmt.Fprintf(p.out, "  the payload was %s\n", lines(string(e.OldPayload)))
		}
		if err == nil && e.OldPayloadBytes != nil {
			_, err = fmt.Fprintf(p.out, "  the payload was %s\n", indented(textview.Payload(e.OldPayloadBytes)))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// result prints the result of an action.
func (p printer) result(past string, r ops.BulkResult) error {
	if p.json {
		return p.encode(r)
	}
	text := "no dead letters match"
	if r.Matched > 0 {
		text = fmt.Sprintf("%s %d of %s", past, r.Done, letterCount(r.Matched))
	}
	if r.Orphans > 0 {
		text += fmt.Sprintf("; %d left alone, because the event is missing: discard them if it was deleted", r.Orphans)
	}
	_, err := fmt.Fprintln(p.out, text)
	return err
}

// became prints the outcome of replayed letters.
func (p printer) became(r ops.BulkResult, b ops.Became) error {
	if p.json {
		return p.encode(struct {
			ops.BulkResult
			ops.Became
		}{r, b})
	}
	if err := p.result("replayed", r); err != nil || r.Done == 0 {
		return err
	}
	text := fmt.Sprintf("delivered %d, dead again %d, still waiting %d", b.Delivered, b.Dead, b.Waiting)
	if b.Discarded > 0 {
		text += fmt.Sprintf(", discarded %d", b.Discarded)
	}
	if b.Gone > 0 {
		text += fmt.Sprintf(", removed without an acknowledgement %d", b.Gone)
	}
	if _, err := fmt.Fprintln(p.out, text); err != nil || len(b.Groups) == 0 {
		return err
	}
	return p.groups(b.Groups[:min(len(b.Groups), maxGroups)])
}

func (p printer) edited(id int64) error {
	if p.json {
		return p.encode(struct {
			EventID int64 `json:"event_id"`
		}{id})
	}
	_, err := fmt.Fprintf(p.out, "edited event %d: deliver it with `notifyd dlq replay %d`\n", id, id)
	return err
}

// progress returns a function that prints the progress of an action now and then.
func (p printer) progress(past string) func(ops.BulkResult) {
	last := time.Now()
	return func(r ops.BulkResult) {
		if time.Since(last) < progressEvery {
			return
		}
		last = time.Now()
		fmt.Fprintf(p.err, "%s %d of %s\n", past, r.Done, letterCount(r.Matched)) //nolint:errcheck // nothing depends on it
	}
}

func (p printer) table(rows [][]string) error {
	var b bytes.Buffer
	for _, row := range rows {
		for i := range row {
			row[i] = clean(row[i])
		}
		b.WriteString(strings.Join(row, "\t") + "\n")
	}
	w := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
	if _, err := w.Write(b.Bytes()); err != nil {
		return err
	}
	return w.Flush()
}

func moment(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// maxShown bounds an error in a table, in characters.
const maxShown = 100

func short(s string) string {
	runes := []rune(clean(s))
	if len(runes) > maxShown {
		return string(runes[:maxShown]) + "..."
	}
	return string(runes)
}

// clean puts s on one line, without control sequences from a server's answer.
func clean(s string) string {
	return strings.Join(strings.Fields(lines(s)), " ")
}

// indented is lines for a text behind a word: its other lines are further in.
func indented(s string) string { return strings.ReplaceAll(lines(s), "\n", "\n    ") }

// lines is clean for texts of several lines.
func lines(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' || unicode.Is(unicode.Bidi_Control, r) {
			return unicode.ReplacementChar
		}
		return r
	}, strings.ReplaceAll(s, "\r\n", "\n"))
}
