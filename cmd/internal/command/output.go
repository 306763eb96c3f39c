package command

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/cmd/internal/doctor"
	"github.com/notifyd/notifyd/cmd/internal/outboxes"
	"github.com/notifyd/notifyd/internal/cli"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/internal/textview"
)

// BasePrinter prints results, as a table or as JSON.
type BasePrinter struct {
	Out, Err io.Writer
	JSON     bool
}

// NewPrinter returns the printer of a command.
func NewPrinter(cmd *cobra.Command, asJSON bool) BasePrinter {
	return BasePrinter{Out: cmd.OutOrStdout(), Err: cmd.ErrOrStderr(), JSON: asJSON}
}

// Encode prints v as indented JSON.
func (p BasePrinter) Encode(v any) error { return WriteJSON(p.Out, v) }

// Table prints rows in columns. The first row has the titles. A long cell is shortened, or it would widen its column for all
// rows; no column follows the last one.
func (p BasePrinter) Table(rows [][]string) error {
	var b bytes.Buffer
	for _, row := range rows {
		for i := range row {
			row[i] = Clean(row[i])
			if i < len(row)-1 {
				row[i] = Short(row[i])
			}
		}
		b.WriteString(strings.Join(row, "\t") + "\n")
	}

	w := tabwriter.NewWriter(p.Out, 0, 0, 2, ' ', 0)
	if _, err := w.Write(b.Bytes()); err != nil {
		return err
	}
	return w.Flush()
}

// maxShown bounds an error in a table, in characters.
const maxShown = 100

// Short returns the beginning of s on one line.
func Short(s string) string {
	runes := []rune(Clean(s))
	if len(runes) > maxShown {
		return string(runes[:maxShown]) + "..."
	}
	return string(runes)
}

// Clean puts s on one line, without control sequences from a server's answer.
func Clean(s string) string {
	return strings.Join(strings.Fields(Lines(s)), " ")
}

// Indented is lines for a text behind a word: its other lines are further in.
func Indented(s string) string { return strings.ReplaceAll(Lines(s), "\n", "\n    ") }

// Lines is clean for texts of several lines.
func Lines(s string) string {
	return strings.Map(func(r rune) rune {
		if textview.Controls(r) && r != '\n' && r != '\t' {
			return unicode.ReplacementChar
		}
		return r
	}, strings.ReplaceAll(s, "\r\n", "\n"))
}

// AddFormat adds --output, for the format of results.
func AddFormat(cmd *cobra.Command) *cli.OneOf {
	o := &cli.OneOf{Words: []string{"table", "json"}, Value: "table"}
	cmd.Flags().VarP(o, "output", "o", "`format` of the result: table, for people, or json")
	return o
}

// WriteJSON writes v as indented JSON. No text in it controls a terminal.
func WriteJSON(w io.Writer, v any) error {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err
	}

	_, err := w.Write(textview.JSON(textview.Indent(text.Bytes())))
	return err
}

// Printable keeps foreign text from controlling the terminal.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if textview.Controls(r) {
			return ' '
		}
		return r
	}, text)
}

// Connector connects with the defaults of role and database, except those of [session.Startup], row_security and search_path.
// It prepares nothing by name, so it works through every pooler.
func Connector(cfg *pgx.ConnConfig, role string) doctor.Connect {
	return func(ctx context.Context) (*pgx.Conn, error) {
		own := cfg.Copy()
		own.DefaultQueryExecMode = pgx.QueryExecModeExec
		session.Startup(own)
		own.RuntimeParams["application_name"] = "notifyd/" + role

		conn, err := pgx.ConnectConfig(ctx, own)
		if err != nil {
			return nil, outboxes.ConnectError(err)
		}

		if err := session.RefuseHiddenDirect(ctx, conn); err != nil {
			store.Close(ctx, conn)
			return nil, err //nolint:wrapcheck // the error names what failed
		}

		readUTC(conn)
		return conn, nil
	}
}

// NamesOf returns the names of the configured destinations; never nil.
func NamesOf(c *config.Config) []string {
	names := make([]string, len(c.Destinations))
	for i, d := range c.Destinations {
		names[i] = d.Name
	}
	return names
}

// ErrNotAgreed is returned where the answer was not yes.
var ErrNotAgreed = errors.New("nothing was done")

// Agreed reads an answer and reports whether it is yes.
func Agreed(in io.Reader) bool {
	line, _ := bufio.NewReader(in).ReadString('\n') // the end of the input does not mean yes
	answer := strings.ToLower(strings.TrimSpace(line))
	return answer == "y" || answer == "yes"
}

// CurrentActor returns user@host, as far as known.
func CurrentActor() string {
	name := "unknown"

	if u, err := user.Current(); err == nil {
		name = u.Username
	}

	if host, err := os.Hostname(); err == nil {
		name += "@" + host
	}

	return strings.ReplaceAll(name, "\x00", "")
}

// LetterCount returns "1 dead letter" or "2 dead letters".
func LetterCount(n int64) string {
	if n == 1 {
		return "1 dead letter"
	}
	return fmt.Sprintf("%d dead letters", n)
}

// ReadPayload returns the argument, or what a file or the standard input has.
func ReadPayload(arg string, stdin io.Reader) ([]byte, error) {
	switch path, isFile := strings.CutPrefix(arg, "@"); {
	case arg == "-":
		return io.ReadAll(stdin)
	case isFile:
		return os.ReadFile(path)
	default:
		return []byte(arg), nil
	}
}

// First returns the first value that is not empty.
func First(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

// EventID parses the id of an event.
func EventID(arg string) (int64, error) {
	id, err := strconv.ParseInt(arg, 10, 64)
	if err != nil {
		return 0, UsageErrorf("EVENT %q is not the id of an event, a number such as 42", arg)
	}
	return id, nil
}
