package printable

import (
	"regexp"
	"strings"
	"sync"
)

// codeWords are what gRPC and Connect put before the sentence of an error: its code, which has a place of its own.
var codeWords = sync.OnceValue(func() *regexp.Regexp {
	const connect = `(?:invalid_argument|deadline_exceeded|not_found|already_exists|permission_denied|resource_exhausted|` +
		`failed_precondition|out_of_range|data_loss): `
	const single = `(?:canceled|unknown|aborted|unimplemented|internal|unavailable|unauthenticated): `
	return regexp.MustCompile(`rpc error: code = \w+ desc = (?:` + single + `)?|\b` + connect)
})

// noWords is an error that has a code only.
var noWords = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`rpc error: code = (\w+) desc =\s*$`) })

// Sentence returns the text of an error without the words of gRPC and Connect for its code.
func Sentence(text string) string {
	if !strings.Contains(text, "rpc error: ") && !strings.ContainsRune(text, '_') {
		return text
	}
	return codeWords().ReplaceAllString(noWords().ReplaceAllString(text, "it answered $1"), "")
}
