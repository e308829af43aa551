package driver

import (
	"cmp"
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/pannier/pannier/sdk/storage"
)

// redacted replaces secrets.
const redacted = "[REDACTED]"

// shortSecret is the length, in bytes, below which a value is redacted only as a separate word: replacing each
// "ro" inside "error" would reveal the value rather than hide it.
const shortSecret = 4

// Redactor removes a request's secrets from texts that came from a driver. The zero value changes nothing.
type Redactor struct {
	values []string // longest first
}

// NewRedactor hides the secrets' values and the capabilities' mount flags, including the part of a flag after "=".
// They are hidden in plain form, as quoted by Go and JSON, and as escaped in a URL, because drivers print all of
// these.
func NewRedactor(secrets map[string]string, caps ...storage.Capability) Redactor {
	var values []string
	for _, v := range secrets {
		values = append(values, v, strings.TrimSpace(v))
	}
	for _, c := range caps {
		for _, flag := range c.MountFlags {
			values = append(values, flag)
			if _, v, ok := strings.Cut(flag, "="); ok && len(v) >= shortSecret {
				values = append(values, v)
			}
		}
	}
	for _, v := range slices.Clone(values) {
		values = append(values, unquoted(strconv.Quote(v)), url.QueryEscape(v), url.PathEscape(v))
		if j, err := json.Marshal(v); err == nil {
			values = append(values, unquoted(string(j)))
		}
	}
	// Longest first, because one value may be part of another.
	slices.SortFunc(values, func(a, b string) int {
		return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b))
	})
	return Redactor{values: slices.DeleteFunc(slices.Compact(values), func(v string) bool { return v == "" })}
}

func unquoted(s string) string { return s[1 : len(s)-1] }

// Text returns s without the secrets.
func (r Redactor) Text(s string) string {
	for _, v := range r.values {
		if len(v) < shortSecret {
			s = hideWord(s, v)
		} else {
			s = strings.ReplaceAll(s, v, redacted)
		}
	}
	return s
}

// hideWord hides v unless it is adjacent to a letter or a digit.
func hideWord(s, v string) string {
	var out strings.Builder
	for {
		i := strings.Index(s, v)
		if i < 0 {
			out.WriteString(s)
			return out.String()
		}
		before, _ := utf8.DecodeLastRuneInString(s[:i])
		after, _ := utf8.DecodeRuneInString(s[i+len(v):])
		out.WriteString(s[:i])
		if alphanumeric(before) || alphanumeric(after) {
			out.WriteString(v)
		} else {
			out.WriteString(redacted)
		}
		s = s[i+len(v):]
	}
}

func alphanumeric(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }
