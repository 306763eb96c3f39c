package email

import "strings"

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
	if !isClass || !isSubject || !isDetail || class != 2 && class != 4 && class != 5 {
		return status{}
	}
	return status{class, subject, detail}
}

// statusNumber reads one to three digits.
func statusNumber(s string) (n int, ok bool) {
	if s == "" || len(s) > 3 || s[0] == '0' && len(s) > 1 {
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
		return s.detail >= 500 && s.detail <= 699 || s.detail >= 850 && s.detail <= 899
	default:
		return s == status{5, 1, 90} || s == status{5, 7, 232} || s == status{5, 7, 233} || s == status{5, 7, 508}
	}
}
