package wire

import (
	"sync"

	"google.golang.org/grpc"
)

// Parts is an option of a call that does the work of several calls. It lets a host count each part, and say what
// became of it, as if it had been a call of its own. gRPC ignores it.
type Parts struct {
	grpc.EmptyCallOption
	// Method is the full name of the call that each part would be.
	Method string
	// Count is how many parts there are.
	Count int

	read func() ([]error, error)
}

// NewParts returns the option. read returns the errors of the parts from the reply of a call that has succeeded, or
// an error of the call as a whole where the reply is not usable.
func NewParts(method string, count int, read func() ([]error, error)) *Parts {
	return &Parts{Method: method, Count: count, read: sync.OnceValues(read)}
}

// Errors returns the errors of the parts, once the call has succeeded: one for each, which the caller may replace,
// or the error of the call as a whole.
func (p *Parts) Errors() ([]error, error) { return p.read() }

// PartsOf returns the option among others; nil: the call has no parts.
func PartsOf(opts []grpc.CallOption) *Parts {
	for _, o := range opts {
		if p, ok := o.(*Parts); ok {
			return p
		}
	}
	return nil
}
