package email

import (
	"slices"
	"strings"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/smtpsink"
)

// row is a fault, and its class.
type row struct {
	name   string
	sink   smtpsink.Options
	fault  smtpsink.Fault
	config func(*Config)
	class  string
	text   string
}

func faults() []row {
	return slices.Concat(connectFaults(), sessionFaults(), limitFaults(), commonFaults())
}

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
		{name: "STARTTLS not offered though mandatory", sink: smtpsink.Options{TLS: smtpsink.NoTLS}, config: func(c *Config) { c.TLS = TLSMandatory }, class: "unavailable", text: "does not support STARTTLS (this port has no encryption: set port: 587"},
		{name: "STARTTLS answered 454", fault: smtpsink.Fault{Stage: smtpsink.STLS, Code: 454}, config: func(c *Config) { c.TLS = TLSMandatory }, class: "unavailable", text: "454"},
		{name: "certificate of an unknown authority", config: func(c *Config) { c.TLS = TLSMandatory }, class: "unavailable", text: "name the authority's certificate with ca_file"},
		{name: "TLS expected, greeting got", config: func(c *Config) { c.TLS = TLSImplicit }, class: "unavailable", text: "tls: first record does not look like a TLS handshake"},
		{name: "AUTH not offered", config: func(c *Config) { c.Username, c.Password = "u", handlers.NewSecret("p4ssw0rd") }, class: "unavailable", text: "does not support SMTP AUTH (this port takes no login: take username and password out"},
		{name: "AUTH answered 535", sink: auth, config: func(c *Config) { c.Username, c.Password = "u", handlers.NewSecret("wr0ng!") }, class: "unavailable", text: "(check password, then username"},
		{name: "AUTH answered 454", sink: auth, fault: smtpsink.Fault{Stage: smtpsink.Auth, Code: 454}, config: func(c *Config) { c.Username, c.Password = "u", handlers.NewSecret("p4ssw0rd") }, class: "unavailable", text: "454"},
		{name: "AUTH repeats the password", sink: auth, fault: smtpsink.Fault{Stage: smtpsink.Auth, Code: 535, Text: "no: p4ssw0rd AHUAcDRzc3cwcmQ="}, config: func(c *Config) { c.Username, c.Password = "u", handlers.NewSecret("p4ssw0rd") }, class: "unavailable", text: "no: [redacted] [redacted]"},
	}
}

func sessionFaults() []row {
	auth := smtpsink.Options{Username: "u", Password: "p4ssw0rd"}
	return []row{
		// MAIL: the sender is configured.
		{name: "MAIL answered 530, password wanted", sink: auth, class: "unavailable", text: "(the server requires a login: set username and password)"},
		{name: "MAIL answered 530, encryption wanted", fault: smtpsink.Fault{Stage: smtpsink.MailCmd, Code: 530, Text: "5.7.0 Must issue a STARTTLS command first"}, class: "unavailable", text: "(the server requires encryption: set tls: mandatory)"},
		{name: "MAIL answered 550", fault: smtpsink.Fault{Stage: smtpsink.MailCmd, Code: 550}, class: "unavailable", text: "giving the sender: 550"},
		{name: "MAIL answered 452", fault: smtpsink.Fault{Stage: smtpsink.MailCmd, Code: 452}, class: "unavailable", text: "452"},
		{name: "MAIL answered 550 to a sender made of the event", fault: smtpsink.Fault{Stage: smtpsink.MailCmd, Code: 550}, config: func(c *Config) { c.From = "{{ .Payload.email }}" }, class: "unclear-retry", text: "550"},
		{name: "MAIL never answered within send_timeout", fault: smtpsink.Fault{Stage: smtpsink.MailCmd, Hang: true}, class: "unavailable", text: "send_timeout of 3s is over"},
		{name: "EOF at MAIL", fault: smtpsink.Fault{Stage: smtpsink.MailCmd, Drop: true}, class: "unavailable", text: "giving the sender: EOF"},
		// RCPT: the event's if the reply is about the recipient, unless it is about the session.
		{name: "RCPT answered 550", fault: smtpsink.Fault{Stage: smtpsink.Rcpt, Code: 550, Text: "5.1.1 no such user\nreally"}, class: "permanent", text: "giving the recipients: 550 5.1.1 no such user really"},
		{name: "RCPT answered 451", fault: smtpsink.Fault{Stage: smtpsink.Rcpt, Code: 451}, class: "unclear-retry", text: "451"},
		{name: "RCPT answered 421", fault: smtpsink.Fault{Stage: smtpsink.Rcpt, Code: 421}, class: "unavailable", text: "421"},
		{name: "RCPT answered 530", fault: smtpsink.Fault{Stage: smtpsink.Rcpt, Code: 530}, class: "unavailable", text: "530"},
		{name: "RCPT answered 503", fault: smtpsink.Fault{Stage: smtpsink.Rcpt, Code: 503}, class: "unavailable", text: "503"},
		{name: "EOF at RCPT", fault: smtpsink.Fault{Stage: smtpsink.Rcpt, Drop: true}, class: "unavailable", text: "EOF"},
		{name: "first RCPT answered 550, connection closed", fault: smtpsink.Fault{Stage: smtpsink.Rcpt, Code: 550, Drop: true}, config: func(c *Config) { c.To = List{"a@example.com", "b@example.com"} }, class: "unclear-permanent", text: "550"},
		{name: "first RCPT answered 451, connection closed", fault: smtpsink.Fault{Stage: smtpsink.Rcpt, Code: 451, Drop: true}, config: func(c *Config) { c.To = List{"a@example.com", "b@example.com"} }, class: "unclear-retry", text: "451"},
		// DATA and the mail itself.
		{name: "DATA answered 554", fault: smtpsink.Fault{Stage: smtpsink.Data, Code: 554}, class: "unclear-permanent", text: "writing the mail: 554"},
		{name: "DATA answered 451", fault: smtpsink.Fault{Stage: smtpsink.Data, Code: 451}, class: "unclear-retry", text: "451"},
		{name: "DATA answered 421", fault: smtpsink.Fault{Stage: smtpsink.Data, Code: 421}, class: "unavailable", text: "421"},
		{name: "EOF at DATA", fault: smtpsink.Fault{Stage: smtpsink.Data, Drop: true}, class: "unavailable", text: "EOF"},
		{name: "mail answered 552", fault: smtpsink.Fault{Stage: smtpsink.DataEnd, Code: 552, Text: "too big\n" + strings.Repeat("x", 1000)}, class: "permanent", text: "552 too big xxx"},
		{name: "mail answered 451", fault: smtpsink.Fault{Stage: smtpsink.DataEnd, Code: 451}, class: "unclear-retry", text: "451"},
		{name: "mail answered 421", fault: smtpsink.Fault{Stage: smtpsink.DataEnd, Code: 421}, class: "unavailable", text: "421"},
		// Nobody knows.
		{name: "EOF after the final dot", fault: smtpsink.Fault{Stage: smtpsink.DataEnd, Drop: true}, class: "unclear-retry", text: "EOF: maybe sent"},
		{name: "no answer to the final dot within send_timeout", fault: smtpsink.Fault{Stage: smtpsink.DataEnd, Hang: true}, class: "unclear-retry", text: "send_timeout of 3s is over: maybe sent"},
		{name: "EOF after the final dot, accepted", fault: smtpsink.Fault{Stage: smtpsink.DataEnd, Drop: true}, config: func(c *Config) { c.MaybeSent = MaybeSentAccept }, class: "delivered"},
		{name: "mail answered 451, accept does not matter", fault: smtpsink.Fault{Stage: smtpsink.DataEnd, Code: 451}, config: func(c *Config) { c.MaybeSent = MaybeSentAccept }, class: "unclear-retry"},
		{name: "EOF at RCPT, accept does not matter", fault: smtpsink.Fault{Stage: smtpsink.Rcpt, Drop: true}, config: func(c *Config) { c.MaybeSent = MaybeSentAccept }, class: "unavailable"},
		// The mail is out.
		{name: "RSET answered 451 after the mail", fault: smtpsink.Fault{Stage: smtpsink.Rset, Code: 451}, class: "delivered"},
		{name: "EOF at RSET after the mail", fault: smtpsink.Fault{Stage: smtpsink.Rset, Drop: true}, class: "delivered"},
	}
}

// limitFaults are the limits of providers, in their words, and replies that look like one.
func limitFaults() []row {
	two := func(c *Config) { c.To = List{"a@example.com", "b@example.com"} }
	const rate, quota = "Throttling failure: Maximum sending rate exceeded.", "5.4.5 Daily user sending limit exceeded. For more information on Gmail\n5.4.5 sending limits go to"
	return []row{
		// About the session, at every command.
		{name: "MAIL answered 454, rate", fault: smtpsink.Fault{Stage: smtpsink.MailCmd, Code: 454, Text: rate}, class: "throttled", text: "giving the sender: 454 Throttling failure"},
		{name: "MAIL answered 454 to a sender made of the event", fault: smtpsink.Fault{Stage: smtpsink.MailCmd, Code: 454, Text: rate}, config: func(c *Config) { c.From = "{{ .Payload.email }}" }, class: "throttled", text: "454"},
		{name: "MAIL answered 452 4.4.5", fault: smtpsink.Fault{Stage: smtpsink.MailCmd, Code: 452, Text: "4.4.5 Messages per second limit exceeded"}, class: "throttled", text: "452 4.4.5"},
		{name: "RCPT answered 454, quota", fault: smtpsink.Fault{Stage: smtpsink.Rcpt, Code: 454, Text: "Throttling failure: Daily message quota exceeded."}, class: "throttled", text: "giving the recipients: 454"},
		{name: "DATA answered 454, rate", fault: smtpsink.Fault{Stage: smtpsink.Data, Code: 454, Text: rate}, class: "throttled", text: "writing the mail: 454"},
		{name: "mail answered 454, rate", fault: smtpsink.Fault{Stage: smtpsink.DataEnd, Code: 454, Text: rate}, class: "throttled", text: "454 Throttling failure"},
		{name: "RCPT answered 550 5.4.5", fault: smtpsink.Fault{Stage: smtpsink.Rcpt, Code: 550, Text: quota}, class: "throttled", text: "550 5.4.5 Daily user"},
		{name: "DATA answered 550 5.4.5", fault: smtpsink.Fault{Stage: smtpsink.Data, Code: 550, Text: quota}, class: "throttled", text: "550 5.4.5"},
		{name: "mail answered 550 5.4.5", fault: smtpsink.Fault{Stage: smtpsink.DataEnd, Code: 550, Text: quota}, class: "throttled", text: "550 5.4.5 Daily user"},
		{name: "mail answered 421 4.7.28", fault: smtpsink.Fault{Stage: smtpsink.DataEnd, Code: 421, Text: "4.7.28 Gmail has detected an unusual rate of mail"}, class: "throttled", text: "421 4.7.28"},
		{name: "mail answered 432 4.3.2", fault: smtpsink.Fault{Stage: smtpsink.DataEnd, Code: 432, Text: "4.3.2 Concurrent connections limit exceeded"}, class: "throttled", text: "432 4.3.2"},
		{name: "RCPT answered 550 5.1.90", fault: smtpsink.Fault{Stage: smtpsink.Rcpt, Code: 550, Text: "5.1.90 Your message can't be sent because you've reached your daily limit"}, class: "throttled", text: "550 5.1.90"},
		{name: "MAIL answered 451 4.7.500", fault: smtpsink.Fault{Stage: smtpsink.MailCmd, Code: 451, Text: "4.7.500 Server busy. Please try again later"}, class: "throttled", text: "451 4.7.500"},
		// About one recipient, one mail, or not by a code.
		{name: "greeted with 421 4.4.5", fault: smtpsink.Fault{Stage: smtpsink.Connect, Code: 421, Text: "4.4.5 Server busy, try again later."}, class: "unavailable", text: "421 4.4.5"},
		{name: "RCPT answered 421 4.7.0", fault: smtpsink.Fault{Stage: smtpsink.Rcpt, Code: 421, Text: "4.7.0 Try again later, closing connection."}, class: "unavailable", text: "421 4.7.0"},
		{name: "RCPT answered 450 4.2.1", fault: smtpsink.Fault{Stage: smtpsink.Rcpt, Code: 450, Text: "4.2.1 The user you are trying to contact is receiving mail too quickly."}, class: "retry", text: "450 4.2.1"},
		{name: "RCPT answered 450 4.7.1", fault: smtpsink.Fault{Stage: smtpsink.Rcpt, Code: 450, Text: "4.7.1 Greylisted, try again in 300 seconds"}, class: "unclear-retry", text: "450 4.7.1"},
		{name: "RCPT answered 454 4.7.1", fault: smtpsink.Fault{Stage: smtpsink.Rcpt, Code: 454, Text: "4.7.1 <ada@example.com>: Relay access denied"}, class: "unclear-retry", text: "454 4.7.1"},
		{name: "RCPT answered 452 4.5.3", fault: smtpsink.Fault{Stage: smtpsink.Rcpt, Code: 452, Text: "4.5.3 Your message has too many recipients."}, class: "retry", text: "452 4.5.3"},
		{name: "mail answered 550 5.7.1, a quota in words", fault: smtpsink.Fault{Stage: smtpsink.DataEnd, Code: 550, Text: "5.7.1 Daily SMTP relay limit exceeded for customer, not 5.4.5"}, class: "unclear-permanent", text: "550 5.7.1"},
		{name: "mail answered 552 5.2.2", fault: smtpsink.Fault{Stage: smtpsink.DataEnd, Code: 552, Text: "5.2.2 mailbox full"}, class: "permanent", text: "552 5.2.2"},
		// Where recipients get different answers, a refusal of one decides.
		{name: "one RCPT answered 454, one 550", sink: smtpsink.Options{Faults: []smtpsink.Fault{{Stage: smtpsink.Rcpt, Match: "a@", Code: 454, Text: rate}}}, fault: smtpsink.Fault{Stage: smtpsink.Rcpt, Match: "b@", Code: 550}, config: two, class: "unclear-permanent", text: "550 5.0.0"},
		{name: "one RCPT answered 550 5.4.5, one 550", sink: smtpsink.Options{Faults: []smtpsink.Fault{{Stage: smtpsink.Rcpt, Match: "a@", Code: 550, Text: quota}}}, fault: smtpsink.Fault{Stage: smtpsink.Rcpt, Match: "b@", Code: 550}, config: two, class: "unclear-permanent", text: "550 5.0.0"},
		{name: "one RCPT answered 454, one 451", sink: smtpsink.Options{Faults: []smtpsink.Fault{{Stage: smtpsink.Rcpt, Match: "a@", Code: 454, Text: rate}}}, fault: smtpsink.Fault{Stage: smtpsink.Rcpt, Match: "b@", Code: 451}, config: two, class: "unclear-retry", text: "451"},
		{name: "one RCPT answered 454, one 421", sink: smtpsink.Options{Faults: []smtpsink.Fault{{Stage: smtpsink.Rcpt, Match: "a@", Code: 454, Text: rate}}}, fault: smtpsink.Fault{Stage: smtpsink.Rcpt, Match: "b@", Code: 421}, config: two, class: "throttled", text: "454"},
	}
}

// commonFaults are replies that a server gives to one mail, or to every mail of a relay with a wrong setting.
func commonFaults() []row {
	const helo, sender, list = "(set helo to the full name of this machine", "(check from: the server does not take this sender", "is on a block list"
	two := func(c *Config) { c.To = List{"a@example.com", "b@example.com"} }
	own := func(c *Config) { c.From = "{{ .Payload.email }}" }
	fails := func(stage smtpsink.Stage, code int, text string) smtpsink.Fault {
		return smtpsink.Fault{Stage: stage, Code: code, Text: text}
	}
	rcpt := func(code int, text string) smtpsink.Fault { return fails(smtpsink.Rcpt, code, text) }
	end := func(code int, text string) smtpsink.Fault { return fails(smtpsink.DataEnd, code, text) }

	return []row{
		// The greeting, at the command where Postfix refuses it, and where it does so with smtpd_delay_reject = no.
		{name: "RCPT answered 504 5.5.2, greeting", fault: rcpt(504, "5.5.2 <shop>: Helo command rejected: need fully-qualified hostname"), class: "unclear-permanent", text: helo},
		{name: "RCPT answered 450 4.7.1, greeting", fault: rcpt(450, "4.7.1 <shop.local>: Helo command rejected: Host not found"), class: "unclear-retry", text: helo},
		{name: "EHLO answered 504 5.5.2, greeting", fault: smtpsink.Fault{Stage: smtpsink.Ehlo, Code: 504, Text: "5.5.2 <shop>: Helo command rejected: need fully-qualified hostname", Times: 2}, class: "unavailable", text: helo},
		// Policies.
		{name: "RCPT answered 554 5.7.1, block list", fault: rcpt(554, "5.7.1 Service unavailable; Client host [192.0.2.1] blocked using zen.spamhaus.org"), class: "unclear-permanent", text: list},
		{name: "RCPT answered 554 5.7.1, relay", fault: rcpt(554, "5.7.1 <ada@example.com>: Relay access denied"), class: "unclear-permanent", text: "(the server does not relay for this machine: set username and password"},
		{name: "RCPT answered 550 without a status, relay", fault: rcpt(550, "relay not permitted"), class: "unclear-permanent", text: "(the server does not relay for this machine"},
		{name: "RCPT answered 554 5.7.1", fault: rcpt(554, "5.7.1 Access denied"), class: "unclear-permanent", text: "(a policy of the server: check helo, from, the login, and block lists)"},
		{name: "greeted with 554 5.7.1, block list", fault: fails(smtpsink.Connect, 554, "5.7.1 your address is listed"), class: "unavailable", text: list},
		{name: "mail answered 550 5.7.26", fault: end(550, "5.7.26 Your email has been blocked because the sender is unauthenticated."), class: "unclear-permanent", text: "(publish SPF and DKIM for the domain of from"},
		// The sender.
		{name: "RCPT answered 553 5.7.1, sender", fault: rcpt(553, "5.7.1 <shop@example.com>: Sender address rejected: not owned by user relay"), class: "unclear-permanent", text: sender},
		{name: "RCPT answered 450 4.1.8, sender", fault: rcpt(450, "4.1.8 <shop@example.com>: Sender address rejected: Domain not found"), class: "unclear-retry", text: sender},
		{name: "RCPT answered 550 5.1.7, sender", fault: rcpt(550, "5.1.7 no such mailbox"), class: "unclear-permanent", text: sender},
		{name: "mail answered 554 5.2.252, sender", fault: end(554, "5.2.252 SendAsDenied; relay@example.com not allowed to send as shop@example.com"), class: "unclear-permanent", text: sender},
		{name: "MAIL answered 553 5.7.1 to a sender made of the event", fault: fails(smtpsink.MailCmd, 553, "5.7.1 not owned by user relay"), config: own, class: "unclear-retry", text: sender},
		{name: "MAIL answered 452 4.3.1 to a sender made of the event", fault: fails(smtpsink.MailCmd, 452, "4.3.1 Insufficient system storage"), config: own, class: "unavailable", text: "452 4.3.1"},
		// The mail system.
		{name: "RCPT answered 452 4.3.1", fault: rcpt(452, "4.3.1 Insufficient system storage"), class: "unavailable", text: "452 4.3.1"},
		{name: "RCPT answered 451 4.3.5", fault: rcpt(451, "4.3.5 Server configuration problem"), class: "unavailable", text: "451 4.3.5"},
		{name: "mail answered 451 4.3.0", fault: end(451, "4.3.0 Error: queue file write error"), class: "unavailable", text: "451 4.3.0"},
		{name: "RCPT answered 550 5.4.1", fault: rcpt(550, "5.4.1 Recipient address rejected: Access denied"), class: "unclear-permanent", text: "550 5.4.1"},
		{name: "RCPT answered 450 4.4.1", fault: rcpt(450, "4.4.1 no answer from host"), class: "unclear-retry", text: "450 4.4.1"},
		{name: "DATA answered 452 without a status", fault: fails(smtpsink.Data, 452, "try later"), class: "unclear-retry", text: "452 try later"},
		// Certainly the recipient, or the mail.
		{name: "RCPT answered 550 5.1.2", fault: rcpt(550, "5.1.2 Bad destination system"), class: "permanent", text: "550 5.1.2"},
		{name: "RCPT answered 450 4.2.0, greylisted", fault: rcpt(450, "4.2.0 <ada@example.com>: Recipient address rejected: Greylisted"), class: "retry", text: "450 4.2.0"},
		{name: "RCPT answered 552 5.2.2", fault: rcpt(552, "5.2.2 mailbox full"), class: "permanent", text: "552 5.2.2"},
		{name: "mail answered 552 5.3.4", fault: end(552, "5.3.4 Message size exceeds fixed limit"), class: "permanent", text: "552 5.3.4"},
		{name: "mail answered 554 5.6.0", fault: end(554, "5.6.0 unreadable"), class: "permanent", text: "554 5.6.0"},
		{name: "RCPT answered 550 4.1.1, which contradicts itself", fault: rcpt(550, "4.1.1 perhaps"), class: "unclear-permanent", text: "550 4.1.1"},
		// Of the refusals of several recipients, one that is certain decides.
		{name: "one RCPT answered 554 5.7.1, one 550 5.1.1", sink: smtpsink.Options{Faults: []smtpsink.Fault{{Stage: smtpsink.Rcpt, Match: "a@", Code: 554, Text: "5.7.1 no"}}}, fault: smtpsink.Fault{Stage: smtpsink.Rcpt, Match: "b@", Code: 550, Text: "5.1.1 no such user"}, config: two, class: "permanent", text: "550 5.1.1"},
		{name: "one RCPT answered 451 4.2.1, one 554 5.7.1", sink: smtpsink.Options{Faults: []smtpsink.Fault{{Stage: smtpsink.Rcpt, Match: "a@", Code: 451, Text: "4.2.1 later"}}}, fault: smtpsink.Fault{Stage: smtpsink.Rcpt, Match: "b@", Code: 554, Text: "5.7.1 no"}, config: two, class: "unclear-permanent", text: "554 5.7.1"},
		{name: "one RCPT answered 450 4.7.1, one 450 4.2.1", sink: smtpsink.Options{Faults: []smtpsink.Fault{{Stage: smtpsink.Rcpt, Match: "a@", Code: 450, Text: "4.7.1 later"}}}, fault: smtpsink.Fault{Stage: smtpsink.Rcpt, Match: "b@", Code: 450, Text: "4.2.1 later"}, config: two, class: "retry", text: "450 4.2.1"},
		{name: "one RCPT taken, one answered 554 5.7.1", fault: smtpsink.Fault{Stage: smtpsink.Rcpt, Match: "b@", Code: 554, Text: "5.7.1 no"}, config: two, class: "unclear-permanent", text: "554 5.7.1"},
	}
}
