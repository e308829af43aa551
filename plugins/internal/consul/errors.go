package consul

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/hashicorp/consul/api"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/service"
)

// maxAnswer bounds how much of Consul's answer is quoted, in bytes.
const maxAnswer = 1000

// Error gives an error of consul/api, of Client or of Token its gRPC code, and a text with what was tried on which
// Consul; what and args are as in fmt.Sprintf. nil stays nil. Unavailable, DeadlineExceeded and ResourceExhausted may
// be retried: Consul cannot be reached, has no leader or limits the rate of requests.
func Error(err error, c service.Consul, what string, args ...any) error {
	if err == nil {
		return nil
	}
	code, text := explain(err)
	return status.Errorf(code, "%s on Consul %q (%s): %s", fmt.Sprintf(what, args...), c.Name, c.Address, text)
}

func explain(err error) (codes.Code, string) {
	var (
		answer    api.StatusError
		own       interface{ GRPCStatus() *status.Status }
		untrusted *tls.CertificateVerificationError
		alert     *net.OpError
		request   *url.Error
		network   net.Error
		tooLarge  *http.MaxBytesError
	)
	switch {
	case errors.As(err, &answer):
		return answerCode(answer)
	case errors.As(err, &own):
		return own.GRPCStatus().Code(), own.GRPCStatus().Message()
	case errors.Is(err, context.Canceled):
		return codes.Canceled, "canceled before Consul answered"
	case errors.Is(err, context.DeadlineExceeded):
		return codes.DeadlineExceeded, "Consul did not answer in time"
	case errors.As(err, &untrusted):
		return codes.FailedPrecondition, untrusted.Error() + ": check ca_file and tls_server_name"
	case errors.As(err, &alert) && alert.Op == "remote error": // crypto/tls's name for the other side's alert
		return codes.FailedPrecondition, alert.Error() + ": check cert_file and key_file"
	case errors.As(err, &tooLarge):
		return codes.FailedPrecondition, fmt.Sprintf("the answer has more than %d bytes", tooLarge.Limit)
	case errors.Is(err, http.ErrSchemeMismatch):
		return codes.FailedPrecondition, "the address speaks http, not https"
	case errors.As(err, &request):
		return codes.Unavailable, request.Err.Error() // without the URL, which adds nothing
	case errors.As(err, &network), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return codes.Unavailable, err.Error()
	}
	return codes.Internal, err.Error()
}

// Answered reports whether Consul answered a request with this HTTP status.
func Answered(err error, code int) bool {
	var answer api.StatusError
	return errors.As(err, &answer) && answer.Code == code
}

// refusals are texts of answers with status 500 that stay the same until somebody changes a config entry.
var refusals = regexp.MustCompile(`has protocol "[^"]*", which|uses inconsistent protocols|` +
	`does not permit advanced routing|was specified more than once|declared on two listeners`)

// otherProtocol is the refusal of a gateway's listener for a service that has another protocol, or none.
var otherProtocol = regexp.MustCompile(
	`service "([^"]+)" has protocol "[^"]*", which does not match defined listener protocol "(.+)"`)

// answerCode returns the gRPC code and the text for an HTTP error status from Consul.
func answerCode(answer api.StatusError) (codes.Code, string) {
	text := strings.Join(strings.Fields(answer.Body), " ")
	if len(text) > maxAnswer {
		text = strings.ToValidUTF8(text[:maxAnswer], "") + "…"
	}
	text = fmt.Sprintf("answered %d: %s", answer.Code, text)
	if m := otherProtocol.FindStringSubmatch(text); m != nil {
		text += fmt.Sprintf(`: echo '{"Kind": "service-defaults", "Name": %q, "Protocol": %q}' | consul config write -`, m[1],
			m[2])
	}
	switch {
	case answer.Code == http.StatusTooManyRequests:
		return codes.ResourceExhausted, text
	case answer.Code == http.StatusForbidden && strings.Contains(answer.Body, "ACL system must be bootstrapped"):
		return codes.Unavailable, text // a server that has just started answers this until it has read its state
	case answer.Code == http.StatusForbidden:
		return codes.PermissionDenied, text
	case answer.Code == http.StatusUnauthorized:
		return codes.Unauthenticated, text
	case answer.Code == http.StatusNotFound:
		return codes.NotFound, text
	case answer.Code == http.StatusBadRequest:
		return codes.InvalidArgument, text
	case refusals.MatchString(answer.Body):
		return codes.FailedPrecondition, text
	case answer.Code >= http.StatusInternalServerError:
		return codes.Unavailable, text
	}
	return codes.Internal, text
}

// tokenHeader carries the ACL token of a request.
const tokenHeader = "X-Consul-Token"

// Present returns the elements of a list in an answer. Consul gives no null, but what answers at its address may.
func Present[T any](all []*T) []*T {
	return slices.DeleteFunc(all, func(e *T) bool { return e == nil })
}

// maxRefusal bounds how much of an error answer is read, in bytes.
const maxRefusal = 64 << 10

// maxBody bounds any other answer, in bytes: the list of 100,000 tokens.
const maxBody = 64 << 20

// redacting bounds answers, and removes the secrets of a request from error answers: a proxy before Consul, or another
// server at its address, may quote what it was sent, and an error's text goes to the host and into logs.
type redacting struct{ next http.RoundTripper }

func (r redacting) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := r.next.RoundTrip(req)
	switch {
	case err != nil:
		return res, err
	case res.StatusCode < http.StatusBadRequest:
		res.Body = http.MaxBytesReader(nil, res.Body, maxBody)
		return res, nil
	}
	text, err := io.ReadAll(io.LimitReader(res.Body, maxRefusal))
	_ = res.Body.Close()
	if err != nil {
		return nil, err
	}
	for _, s := range sentSecrets(req) {
		text = bytes.ReplaceAll(text, []byte(s), []byte("[REDACTED]"))
	}
	res.Body = io.NopCloser(bytes.NewReader(text))
	res.ContentLength = int64(len(text))
	return res, nil
}

// sentSecrets returns the token of a request, and from its body the JWTs and the headers of checks.
func sentSecrets(req *http.Request) []string {
	var secrets []string
	if token := req.Header.Get(tokenHeader); token != "" {
		secrets = append(secrets, token)
	}
	if req.GetBody == nil {
		return secrets
	}
	body, err := req.GetBody()
	if err != nil {
		return secrets
	}
	defer body.Close()
	var sent any
	if json.NewDecoder(body).Decode(&sent) != nil {
		return secrets
	}
	return collect(secrets, sent, false)
}

// collect appends the texts below keys that hold secrets.
func collect(secrets []string, v any, secret bool) []string {
	switch v := v.(type) {
	case string:
		if secret && v != "" {
			secrets = append(secrets, v)
		}
	case []any:
		for _, element := range v {
			secrets = collect(secrets, element, secret)
		}
	case map[string]any:
		for key, element := range v {
			secrets = collect(secrets, element, secret || key == "BearerToken" || key == "Header")
		}
	}
	return secrets
}
