package smtpsink

import (
	"fmt"
	"time"
)

// Stage is a point of an SMTP conversation.
type Stage string

// The stages, in their order. All but Connect and DataEnd are named after the
// command that the fault answers.
const (
	Connect Stage = "CONNECT" // in place of the greeting
	Ehlo    Stage = "EHLO"    // EHLO and HELO
	STLS    Stage = "STARTTLS"
	Auth    Stage = "AUTH"
	MailCmd Stage = "MAIL"
	Rcpt    Stage = "RCPT"
	Data    Stage = "DATA"
	DataEnd Stage = "DATA END" // in place of the reply to the final dot
	Rset    Stage = "RSET"
	Noop    Stage = "NOOP"
)

// Always is for [Fault.Times].
const Always = -1

// Fault is a failure at one stage.
//
// A fault with a Code at DataEnd refuses the mail. Every other fault at DataEnd
// accepts and records it: with Drop the client never learns of it.
type Fault struct {
	// Stage is the stage of the fault.
	Stage Stage
	// Code is the reply, 451 for example; 0 means the usual one. 421 also closes the
	// connection.
	Code int
	// Text follows the code unchanged, with an enhanced status code only if it
	// begins with one; it may have several lines.
	Text string
	// Delay passes before the reply.
	Delay time.Duration
	// Drop closes the connection, after the reply if there is a Code, else
	// instead of it.
	Drop bool
	// Hang answers nothing until the server or the client closes.
	Hang bool
	// Match, if set, makes the fault apply only to lines that contain it, such
	// as one recipient's address. At DataEnd it matches the whole mail.
	Match string
	// Mails is how many mails the connection must have carried before the fault
	// happens on it: the limit of a session.
	Mails int
	// Times is how often the fault happens: 0 is once, [Always] is every time.
	Times int
}

// Fail adds faults. At each stage the first one that matches is used.
func (s *Sink) Fail(faults ...Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, faults...)
}

// Heal removes all faults that are left.
func (s *Sink) Heal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = nil
}

// Failed returns how often a fault has happened.
func (s *Sink) Failed() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// take returns the fault for a stage of a connection that has carried so many mails, and counts
// it as used.
func (s *Sink) take(stage Stage, text string, mails int) (Fault, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	for i := range s.faults {
		f := s.faults[i]
		if f.Stage != stage || !contains(text, f.Match) || mails < f.Mails {
			continue
		}

		switch {
		case f.Times == Always:
		case f.Times > 1:
			s.faults[i].Times--
		default:
			s.faults = append(s.faults[:i:i], s.faults[i+1:]...)
		}
		s.failed++
		return f, true
	}
	return Fault{}, false
}

// reply returns the lines of the fault's answer, or "" if the fault does not answer.
func (f Fault) reply() string {
	if f.Code == 0 {
		return ""
	}
	return formatReply(f.Code, f.text())
}

// text returns the text after the code.
func (f Fault) text() string {
	if f.Text == "" {
		return fmt.Sprintf("%d.0.0 scripted fault at %s", f.Code/100, f.Stage)
	}
	return f.Text
}

// hang counts the connections that are held up.
func (s *Sink) hang(by int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hanging += by
	s.announce()
}
