package config

import (
	"errors"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
)

const day = 24 * time.Hour

// durationPattern matches what [parseDuration] accepts, for the JSON Schema as well.
const durationPattern = `^(0|([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h|d))+)$`

var (
	durationRegexp = regexp.MustCompile(durationPattern)
	durationPart   = regexp.MustCompile(`([0-9.]+)([a-zµ]+)`)

	errDuration = errors.New("not a duration: write 500ms, 30s, 5m, 12h or 7d")
	errTooLong  = errors.New("duration is too long: the most is about 292 years")
)

// ParseDuration reads a duration of the file: Go's syntax, and days such as 7d.
func ParseDuration(s string) (time.Duration, error) { return parseDuration(s) }

// parseDuration reads Go's durations plus the unit d, a day of 24 hours.
func parseDuration(s string) (time.Duration, error) {
	if !durationRegexp.MatchString(s) {
		return 0, errDuration
	}

	var total time.Duration
	for _, part := range durationPart.FindAllStringSubmatch(s, -1) {
		d, err := parsePart(part[1], part[2])
		if err != nil || total > math.MaxInt64-d {
			return 0, errTooLong
		}
		total += d
	}

	return total, nil
}

func parsePart(number, unit string) (time.Duration, error) {
	if unit != "d" {
		return time.ParseDuration(number + unit)
	}

	days, err := strconv.ParseFloat(number, 64)
	if err != nil || days*float64(day) >= math.MaxInt64 {
		return 0, errTooLong
	}
	return time.Duration(days * float64(day)), nil
}

// formatDuration returns the shortest text that [parseDuration] reads back.
func formatDuration(d time.Duration) string {
	if d == 0 {
		return "0"
	}
	days := d / day
	rest := d % day
	text := ""
	if days > 0 {
		text = strconv.FormatInt(int64(days), 10) + "d"
	}

	if rest == 0 {
		return text
	}

	s := rest.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}

	return text + s
}
