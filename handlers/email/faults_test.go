package email

import (
	"strings"

	"github.com/notifyd/notifyd/internal/secret"
	"github.com/notifyd/notifyd/internal/smtpsink"
)

// row is a way to fail, and what is made of it.
type row struct {
	name   string
	sink   smtpsink.Options
	fault  smtpsink.Fault
	config func(*Config)
	class  string
	text   string
}

func faults() []row { return append(connectFaults(), sessionFaults()...) }

func connectFaults() []row {
	auth := smtpsink.Options{Username: "u", Password: "p4ssw0rd"}
	return []row{
		// Connecting: the server's fault, whatever it says.
		{name: "421 instead of a greeting", fault: smtpsink.Fault{Stage: smtpsink.Connect, Code: 421}, class: "unavailable", text: "connecting: 127.0.0.1:"},
		{name: "554 instead of a greeting", fault: smtpsink.Fault{Stage: smtpsink.Connect, Code: 554}, class: "unavailable", text: "554 5.0.0 scripted"},
		{name: "EOF instead of a greeting", fault: smtpsink.Fault{Stage: smtpsink.Connect, Drop: true}, class: "unavailable", text: "EOF"},
		{name: "no greeting within connect_timeout", fault: smtpsink.Fault{Stage: smtpsink.Connect, Hang: true}, class: "unavailable", text: "connect_timeout of 3s is over"},
		{name: "EHLO and HELO answered 550", fault: smtpsink.Fault{Stage: smtpsink.Ehlo, Code: 550, Times: 2}, class: "unavailable", text: "550"},
		{name: "EHLO answered 451 and HELO too", fault: smtpsink.Fault{Stage: smtpsink.Ehlo, Code: 451, Times: 2}, class: "unavailable", text: "451"},
		{name: "STARTTLS not offered though mandatory", sink: smtpsink.Options{TLS: smtpsink.NoTLS}, config: func(c *Config) { c.TLS = TLSMandatory }, class: "unavailable", text: "does not support STARTTLS (set tls: implicit"},
		{name: "STARTTLS answered 454", fault: smtpsink.Fault{Stage: smtpsink.STLS, Code: 454}, config: func(c *Config) { c.TLS = TLSMandatory }, class: "unavailable", text: "454"},
		{name: "certificate of an unknown authority", config: func(c *Config) { c.TLS = TLSMandatory }, class: "unavailable", text: "name the authority's certificate with ca_file"},
		{name: "TLS expected, greeting got", config: func(c *Config) { c.TLS = TLSImplicit }, class: "unavailable", text: "tls: first record does not look like a TLS handshake"},
		{name: "AUTH not offered", config: func(c *Config) { c.Username, c.Password = "u", secret.New("p4ssw0rd") }, class: "unavailable", text: "does not support SMTP AUTH"},
		{name: "AUTH answered 535", sink: auth, config: func(c *Config) { c.Username, c.Password = "u", secret.New("wr0ng!") }, class: "unavailable", text: "AUTH: 535"},
		{name: "AUTH answered 454", sink: auth, fault: smtpsink.Fault{Stage: smtpsink.Auth, Code: 454}, config: func(c *Config) { c.Username, c.Password = "u", secret.New("p4ssw0rd") }, class: "unavailable", text: "454"},
		{name: "AUTH repeats the password", sink: auth, fault: smtpsink.Fault{Stage: smtpsink.Auth, Code: 535, Text: "no: p4ssw0rd AHUAcDRzc3cwcmQ="}, config: func(c *Config) { c.Username, c.Password = "u", secret.New("p4ssw0rd") }, class: "unavailable", text: "no: [redacted] [redacted]"},
	}
}

func sessionFaults() []row {
	auth := smtpsink.Options{Username: "u", Password: "p4ssw0rd"}
	return []row{
		// MAIL: the sender is ours.
		{name: "MAIL answered 530, password wanted", sink: auth, class: "unavailable", text: "530"},
		{name: "MAIL answered 550", fault: smtpsink.Fault{Stage: smtpsink.MailCmd, Code: 550}, class: "unavailable", text: "giving the sender: 550"},
		{name: "MAIL answered 452", fault: smtpsink.Fault{Stage: smtpsink.MailCmd, Code: 452}, class: "unavailable", text: "452"},
		{name: "MAIL answered 550 to a sender made of the event", fault: smtpsink.Fault{Stage: smtpsink.MailCmd, Code: 550}, config: func(c *Config) { c.From = "{{ .Payload.email }}" }, class: "retry", text: "550"},
		{name: "MAIL never answered within send_timeout", fault: smtpsink.Fault{Stage: smtpsink.MailCmd, Hang: true}, class: "unavailable", text: "send_timeout of 3s is over"},
		{name: "EOF at MAIL", fault: smtpsink.Fault{Stage: smtpsink.MailCmd, Drop: true}, class: "unavailable", text: "giving the sender: EOF"},
		// RCPT: the event's, unless it is about the session.
		{name: "RCPT answered 550", fault: smtpsink.Fault{Stage: smtpsink.Rcpt, Code: 550, Text: "5.1.1 no such user\nreally"}, class: "permanent", text: "giving the recipients: 550 5.1.1 no such user really"},
		{name: "RCPT answered 451", fault: smtpsink.Fault{Stage: smtpsink.Rcpt, Code: 451}, class: "retry", text: "451"},
		{name: "RCPT answered 421", fault: smtpsink.Fault{Stage: smtpsink.Rcpt, Code: 421}, class: "unavailable", text: "421"},
		{name: "RCPT answered 530", fault: smtpsink.Fault{Stage: smtpsink.Rcpt, Code: 530}, class: "unavailable", text: "530"},
		{name: "RCPT answered 503", fault: smtpsink.Fault{Stage: smtpsink.Rcpt, Code: 503}, class: "unavailable", text: "503"},
		{name: "EOF at RCPT", fault: smtpsink.Fault{Stage: smtpsink.Rcpt, Drop: true}, class: "unavailable", text: "EOF"},
		{name: "first RCPT answered 550, connection closed", fault: smtpsink.Fault{Stage: smtpsink.Rcpt, Code: 550, Drop: true}, config: func(c *Config) { c.To = List{"a@example.com", "b@example.com"} }, class: "permanent", text: "550"},
		{name: "first RCPT answered 451, connection closed", fault: smtpsink.Fault{Stage: smtpsink.Rcpt, Code: 451, Drop: true}, config: func(c *Config) { c.To = List{"a@example.com", "b@example.com"} }, class: "retry", text: "451"},
		// DATA and the mail itself.
		{name: "DATA answered 554", fault: smtpsink.Fault{Stage: smtpsink.Data, Code: 554}, class: "permanent", text: "writing the mail: 554"},
		{name: "DATA answered 451", fault: smtpsink.Fault{Stage: smtpsink.Data, Code: 451}, class: "retry", text: "451"},
		{name: "DATA answered 421", fault: smtpsink.Fault{Stage: smtpsink.Data, Code: 421}, class: "unavailable", text: "421"},
		{name: "EOF at DATA", fault: smtpsink.Fault{Stage: smtpsink.Data, Drop: true}, class: "unavailable", text: "EOF"},
		{name: "mail answered 552", fault: smtpsink.Fault{Stage: smtpsink.DataEnd, Code: 552, Text: "too big\n" + strings.Repeat("x", 1000)}, class: "permanent", text: "552 too big 5.0.0 xxx"},
		{name: "mail answered 451", fault: smtpsink.Fault{Stage: smtpsink.DataEnd, Code: 451}, class: "retry", text: "451"},
		{name: "mail answered 421", fault: smtpsink.Fault{Stage: smtpsink.DataEnd, Code: 421}, class: "unavailable", text: "421"},
		// Nobody knows.
		{name: "EOF after the final dot", fault: smtpsink.Fault{Stage: smtpsink.DataEnd, Drop: true}, class: "retry", text: "EOF: maybe sent"},
		{name: "no answer to the final dot within send_timeout", fault: smtpsink.Fault{Stage: smtpsink.DataEnd, Hang: true}, class: "retry", text: "send_timeout of 3s is over: maybe sent"},
		{name: "EOF after the final dot, accepted", fault: smtpsink.Fault{Stage: smtpsink.DataEnd, Drop: true}, config: func(c *Config) { c.MaybeSent = MaybeSentAccept }, class: "delivered"},
		{name: "mail answered 451, accept does not matter", fault: smtpsink.Fault{Stage: smtpsink.DataEnd, Code: 451}, config: func(c *Config) { c.MaybeSent = MaybeSentAccept }, class: "retry"},
		{name: "EOF at RCPT, accept does not matter", fault: smtpsink.Fault{Stage: smtpsink.Rcpt, Drop: true}, config: func(c *Config) { c.MaybeSent = MaybeSentAccept }, class: "unavailable"},
		// The mail is out.
		{name: "RSET answered 451 after the mail", fault: smtpsink.Fault{Stage: smtpsink.Rset, Code: 451}, class: "delivered"},
		{name: "EOF at RSET after the mail", fault: smtpsink.Fault{Stage: smtpsink.Rset, Drop: true}, class: "delivered"},
	}
}
