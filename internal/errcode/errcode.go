// Package errcode gives a sentinel error, where it is declared, the code that callers over gRPC, Connect and HTTP see.
// It imports the standard library only, so that packages of pure rules can use it.
package errcode

import "errors"

// Code is a code of gRPC and Connect, with the same number.
type Code uint32

// The codes of the errors of this program.
const (
	InvalidArgument    Code = 3
	NotFound           Code = 5
	AlreadyExists      Code = 6
	PermissionDenied   Code = 7
	ResourceExhausted  Code = 8
	FailedPrecondition Code = 9
	Unimplemented      Code = 12
	Unavailable        Code = 14
	Unauthenticated    Code = 16
)

// precedence decides between the sentinels of one error: what can be retried hides the reason that it wraps.
var precedence = []Code{
	PermissionDenied, Unauthenticated, Unavailable, ResourceExhausted, NotFound, InvalidArgument, Unimplemented,
	AlreadyExists,
	FailedPrecondition,
}

// New returns a sentinel error with the code c.
func (c Code) New(text string) error { return &sentinel{c, text} }

// Of returns the code of the sentinels that err is, as errors.Is finds them; false: it is none.
func Of(err error) (Code, bool) {
	for _, c := range precedence {
		if errors.Is(err, anyOf(c)) {
			return c, true
		}
	}
	return 0, false
}

type sentinel struct {
	code Code
	text string
}

func (s *sentinel) Error() string { return s.text }

// Is matches anyOf(s.code).
func (s *sentinel) Is(target error) bool {
	c, ok := target.(anyOf)
	return ok && Code(c) == s.code
}

// anyOf matches all sentinels of one code in errors.Is.
type anyOf Code

func (anyOf) Error() string { return "any error of a code" }
