package email_test

import (
	"context"
	"fmt"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/email"
	"github.com/notifyd/notifyd/internal/smtpsink"
)

func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	server, err := smtpsink.Start(smtpsink.Options{}) // a mail server in the process
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = server.Close() }()

	h, err := email.New(email.Config{
		Host: server.Host(), Port: server.Port(), TLS: email.TLSNone,
		From:    "Shop <shop@example.com>",
		To:      email.List{"{{ address .Payload.name .Payload.email }}"},
		Subject: "Your order {{ .Event.AggregateID }}",
		Text:    `Dear {{ .Payload.name }}, we got your order over {{ money .Payload.total "EUR" }}.`,
		HTML:    `<p>Dear {{ .Payload.name }}, we got your order over <b>{{ money .Payload.total "EUR" }}</b>.</p>`,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = h.Close() }()

	err = h.Deliver(ctx, &delivery.Event{
		ID: 7, Type: "order.created", AggregateID: "A-1", Destination: "mail", Attempt: 1,
		Payload: []byte(`{"name":"Ada","email":"ada@example.com","total":1999}`),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	mails, err := server.Wait(ctx, 1)
	if err != nil {
		fmt.Println(err)
		return
	}
	m, err := mails[0].Parse()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(m.MessageID)
	fmt.Println(m.To)
	fmt.Println(m.Subject)
	fmt.Println(m.Text)
	fmt.Println(m.HTML)
	// Output:
	// <notifyd.7.mail@example.com>
	// "Ada" <ada@example.com>
	// Your order A-1
	// Dear Ada, we got your order over 19.99 EUR.
	// <p>Dear Ada, we got your order over <b>19.99 EUR</b>.</p>
}
