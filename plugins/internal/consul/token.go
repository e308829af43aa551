package consul

import (
	"os"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Token reads an ACL token out of its file, at each use since it may be rotated; "",
// which is no file, is no token. A file that cannot be read, or that has not one
// word, is FailedPrecondition; the error names the file and never what is in it.
func Token(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return "", status.Errorf(codes.FailedPrecondition, "token_file cannot be read: %v", err)
	}
	words := strings.Fields(string(text))
	switch {
	case len(words) == 0:
		return "", status.Errorf(codes.FailedPrecondition, "token_file %q is empty: write the secret id of a Consul ACL token into it", path)
	case len(words) > 1:
		return "", status.Errorf(codes.FailedPrecondition, "token_file %q holds more than one word: it must have nothing but the secret id of a Consul ACL token", path)
	}
	return words[0], nil
}
