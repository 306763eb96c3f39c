package handlers_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/email"
)

// addMails adds a destination that sends mails, as docs/destinations.md has it.
func addMails(relay *notifyd.Relay) (closers []io.Closer, err error) {
	add := func() error {
		mail, err := email.New(email.Config{
			Host: "smtp.example.com", Username: "shop", Password: handlers.NewSecret(os.Getenv("SMTP_PASSWORD")),
			From: "shop@example.com", To: email.List{"{{ .Payload.email }}"}, Subject: "Order {{ .Event.AggregateID }}", Text: "Thank you.",
		})
		if mistake, ok := errors.AsType[*handlers.FieldError](err); ok {
			return fmt.Errorf("the field %s of the mails is wrong: %w", mistake.Path, mistake.Err)
		}
		if err != nil {
			return err
		}
		closers = append(closers, mail) // to be closed after Run has returned
		err = relay.Handle("order.placed", notifyd.Destination{Name: "mail", Handler: mail, Lane: email.DefaultLane()})
		return err
	}
	return closers, add()
}

// TestDestinationsPage requires the Go of docs/destinations.md to be part of the example, which runs.
func TestDestinationsPage(t *testing.T) { //nolint:paralleltest // it sets a variable of the environment
	page, err := os.ReadFile("../docs/destinations.md")
	if err != nil {
		t.Fatal(err)
	}
	code, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(page), "```go\n")[1:]
	for _, block := range blocks {
		block, _, _ = strings.Cut(block, "```")
		if !strings.Contains(strings.ReplaceAll(string(code), "\n\t\t", "\n"), block) {
			t.Errorf("no example contains:\n%s", block)
		}
	}
	if len(blocks) != 1 {
		t.Errorf("%d blocks of Go", len(blocks))
	}
	pool, err := pgxpool.New(t.Context(), "postgres://127.0.0.1:1/nothing")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	for password, want := range map[string]string{"hunter2": "", "": "the field password of the mails is wrong: missing: username needs one"} {
		t.Setenv("SMTP_PASSWORD", password)
		relay, err := notifyd.New(pool, notifyd.Config{})
		if err != nil {
			t.Fatal(err)
		}
		closers, err := addMails(relay)
		for _, c := range closers {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
		if (err == nil) != (want == "") || err != nil && !strings.HasPrefix(err.Error(), want) {
			t.Errorf("with the password %q: %v", password, err)
		}
	}
}

// A program sets secrets with NewSecret. They are hidden wherever a Config is printed.
func ExampleNewSecret() {
	cfg := email.Config{Host: "smtp.example.com", Username: "shop", Password: handlers.NewSecret("hunter2")}
	fmt.Println(cfg.Username, cfg.Password, cfg.Password.Reveal())
	// Output:
	// shop [redacted] hunter2
}

// New and Validate name the field of each mistake.
func ExampleFieldError() {
	_, err := email.New(email.Config{Host: "smtp.example.com", From: "shop@example.com", To: email.List{"ann@example.com"}, Text: "Thank you."})
	if mistake, ok := errors.AsType[*handlers.FieldError](err); ok {
		fmt.Printf("the field %s is %v\n", mistake.Path, mistake.Err)
	}
	// Output:
	// the field subject is missing: write one, such as Order {{ .Event.AggregateID }}
}
