package email

import (
	"slices"
	"strings"
)

// status is an enhanced status code, class.subject.detail (RFC 3463). Its zero
// value stands for a reply without a code.
type status struct{ class, subject, detail int }

// parseStatus returns the enhanced status code at the beginning of the text of a
// reply (RFC 2034). It returns the zero status for a malformed code: a class other
// than 2, 4 and 5, a leading zero, more than three digits, something other than a
// space or the end of the line behind it.
func parseStatus(text string) status {
	line, _, _ := strings.Cut(text, "\n")
	word, _, _ := strings.Cut(line, " ")
	parts := strings.Split(word, ".")
	if len(parts) != 3 {
		return status{}
	}

	class, isClass := statusNumber(parts[0])
	subject, isSubject := statusNumber(parts[1])
	detail, isDetail := statusNumber(parts[2])

	isStatus := isClass && isSubject && isDetail
	isKnown := class == 2 || class == 4 || class == 5
	if !isStatus || !isKnown {
		return status{}
	}

	return status{class, subject, detail}
}

// statusNumber reads one to three digits.
func statusNumber(s string) (n int, ok bool) {
	if s == "" || len(s) > 3 {
		return 0, false
	}
	if s[0] == '0' && len(s) > 1 {
		return 0, false
	}

	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
		n = 10*n + int(s[i]-'0')
	}

	return n, true
}

const (
	// codeThrottling is Amazon SES's "Throttling failure: Maximum sending rate
	// exceeded" and "Daily message quota exceeded" (Amazon SES Developer Guide,
	// "Errors related to the sending quotas"). STARTTLS (RFC 3207) and AUTH (RFC
	// 4954) have it too, and come before a mail.
	codeThrottling = 454
	// codeConnections is Exchange Online's "432 4.3.2 Concurrent connections limit
	// exceeded" (Microsoft, "Concurrent connection throttling for SMTP Authenticated
	// Submission").
	codeConnections = 432
)

// isLimit reports whether a reply to a command of a mail means that notifyd has sent
// too much, or too fast, by codes with no other meaning:
//
//	454 alone        Amazon SES: rate or daily quota
//	x.4.5            RFC 3463: mail system congestion. Gmail: 550 5.4.5 daily sending
//	                 limit of a user, 421 4.4.5 server busy
//	4.7.28           RFC 5248's registry: mail flood. Gmail: 421 4.7.28, rate limited
//	432 4.3.2        Exchange Online: too many connections at once
//	4.7.500 to 699   Exchange Online: restricted for now, server busy
//	4.7.850 to 899   Exchange Online: the same for an IP address
//	5.1.90           Exchange Online: daily limit for recipients
//	5.7.232, 5.7.233 Exchange Online: daily limit of the tenant for recipients outside
//	5.7.508          Exchange Online: too much in a short time from an IPv6 range
//
// Not among them, although they are limits sometimes: 4.2.1 (Gmail: this user gets
// mail too fast) and 5.2.121, 5.2.122 (Exchange Online: the same) are about one
// recipient; 4.5.3 is about the recipients of one mail; 454 4.7.1 is Postfix that does not
// relay, and 4.7.1 its greylisting; 5.2.2 is a full mailbox too, 5.4.6 a loop, 5.7.1 any
// policy; 5.7.28 is blocked, and 5.7.705 banned, until an administrator acts.
func isLimit(code int, s status) bool {
	switch {
	case isOurs(code):
		return false
	case s == status{}:
		return code == codeThrottling
	case s.class != code/100: // one of the two is wrong
		return false
	case s.subject == 4 && s.detail == 5, s == status{4, 7, 28}:
		return true
	case s == status{4, 3, 2}:
		return code == codeConnections
	case s.class == 4 && s.subject == 7:
		return between(s.detail, 500, 699) || between(s.detail, 850, 899)
	default:
		return slices.Contains([]status{{5, 1, 90}, {5, 7, 232}, {5, 7, 233}, {5, 7, 508}}, s)
	}
}

func between(n, least, most int) bool { return n >= least && n <= most }

// isAboutEvent reports whether a reply is about a recipient or the mail, and not about every mail of this relay.
// RFC 3463 reserves the subjects 3 and 4 for the mail system and the network, 5 for the protocol and 7 for policies:
//
//	x.1.1 to x.1.6, x.1.10      the recipient's address. Not x.1.0, which says too little, nor x.1.7 and x.1.8, the sender
//	x.2.0 to x.2.4, x.2.12*     the recipient's mailbox. Not x.2.252, Exchange Online: this login may not use the sender
//	x.3.4, 552 behind the mail  the mail is too large
//	x.5.3                       too many recipients
//	x.6.*                       the content
func isAboutEvent(at stage, code int, s status) bool {
	if s.class != code/100 { // the two contradict each other, or the reply has no status
		return code == codeTooLarge && (at == stageData || at == stageEnd)
	}

	switch s.subject {
	case 1:
		return s.detail >= 1 && s.detail <= 6 || s.detail == 10
	case 2:
		return s.detail <= 4 || s.detail == 121 || s.detail == 122
	case 3:
		return s.detail == 4
	case 5:
		return s.detail == 3
	default:
		return s.subject == 6
	}
}

// codeTooLarge is "exceeded storage allocation": the mail is too large.
const codeTooLarge = 552

// refusalCure returns an operator's remedy for a reply that may concern every mail, or "". The words of a reply choose
// the remedy only: they never decide about the event.
func refusalCure(code int, s status, said string) string {
	if s.class != code/100 {
		s = status{}
	}
	words := strings.ToLower(said)
	says := func(parts ...string) bool {
		return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(words, part) })
	}

	isGreeting := says("helo", "ehlo", "fully-qualified", "fully qualified") || code == 504 && s.subject == 5
	isSender := s.subject == 1 && (s.detail == 7 || s.detail == 8)
	maySendAs := s.subject != 2 || s.detail != 252
	isUnproven := s.subject == 7 && s.detail >= 20 && s.detail <= 27

	switch {
	case isLimit(code, s), says("greylist", "graylist"):
		return ""
	case isGreeting:
		return "set helo to the full name of this machine, such as relay.example.com"
	case isSender, !maySendAs, says("sender address", "sendas", "send as", "not owned by"):
		return "check from: the server does not take this sender from this login"
	case isUnproven:
		return "publish SPF and DKIM for the domain of from, and a reverse DNS name for this machine"
	case says("relay"):
		return "the server does not relay for this machine: set username and password, or allow this machine there"
	case says("blocked", "block list", "blocklist", "blacklist", "listed", "reputation", "spamhaus"):
		return "this machine's address or the domain of from is on a block list: have it removed, or send through a provider"
	case s.subject == 7:
		return "a policy of the server: check helo, from, the login, and block lists"
	default:
		return ""
	}
}
