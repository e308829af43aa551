package conformance

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/pannier/pannier/sdk/bootstrap"
	"github.com/pannier/pannier/sdk/device"
	"github.com/pannier/pannier/sdk/identity"
	"github.com/pannier/pannier/sdk/registration"
	"github.com/pannier/pannier/sdk/storage"
)

// kind is what the checks need to know of a kind.
type kind struct {
	// service is the kind's.
	service protoreflect.ServiceDescriptor
	// ask is a call that changes nothing, with its answer in a form that can be compared.
	ask func(ctx context.Context, conn grpc.ClientConnInterface, at backend) (string, error)
	// methods are calls of what every plugin of the kind has, with all that a host passes.
	methods []method
	// missing says what a Config lacks for a job; empty: nothing.
	missing func(*Config) string
	// job is work with a real backend, from making to taking away.
	job func(ctx context.Context, r *run, conn grpc.ClientConnInterface, name string) ([]step, error)
	// refusals are calls that must fail with a certain code, with a real backend.
	refusals []refusal
	// final is a call that the backend behind socket answers with a final error.
	final func(ctx context.Context, conn grpc.ClientConnInterface, at backend) error
	// stream opens a stream that ends with its context only; nil: the kind has none. It
	// calls opened with the first answer.
	stream func(ctx context.Context, conn grpc.ClientConnInterface, at backend, opened func()) error
}

// method is one call. name is unique for a check, and so is what is made of it.
type method struct {
	name string
	call func(ctx context.Context, conn grpc.ClientConnInterface, at backend, name string) error
}

// refusal is a call with the code that the kind's documentation gives it.
type refusal struct {
	what string
	code codes.Code
	call func(ctx context.Context, r *run, conn grpc.ClientConnInterface) error
}

// step is one call of a job. It can be repeated, also by another process.
type step struct {
	name string
	// base steps come before all others, also where these are not made.
	base bool
	// undo steps take away; what is not there is no error.
	undo bool
	do   func(ctx context.Context, conn grpc.ClientConnInterface) (answer string, err error)
}

var kinds = map[string]*kind{
	storage.Kind:      storageKind,
	identity.Kind:     identityKind,
	registration.Kind: registrationKind,
	bootstrap.Kind:    bootstrapKind,
	device.Kind:       deviceKind,
}

func kindNames() string { return strings.Join(slices.Sorted(maps.Keys(kinds)), ", ") }

// The times that calls have which are expected to fail, or to hang.
const (
	hopeless = time.Second
	patient  = 10 * time.Second       // of a call that had no answer in time: the machine may be busy
	underway = 200 * time.Millisecond // until a call has come to its backend
)

// asked is the answer of ask, or what kind of error came instead.
func (k *kind) asked(ctx context.Context, conn grpc.ClientConnInterface, at backend) string {
	ctx, cancel := context.WithTimeout(ctx, at.patience+2*time.Second)
	defer cancel()
	answer, err := k.ask(ctx, conn, at)
	if err != nil {
		return outcome(err)
	}
	return answer
}

// outcome is what a host makes of an error: whether it is worth another try, or its code.
func outcome(err error) string {
	switch code := status.Code(err); code {
	case codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted:
		return "an error that is worth another try"
	default:
		return "the error " + code.String() + ": " + status.Convert(err).Message()
	}
}

// within makes one call, which has so much time.
func (m method) within(ctx context.Context, limit time.Duration, conn grpc.ClientConnInterface, at backend, name string) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return m.call(ctx, conn, at, name)
}

// outcomes calls all methods side by side and gives the result of each.
func (k *kind) outcomes(ctx context.Context, conn grpc.ClientConnInterface, at backend, name string) map[string]error {
	type result struct {
		name string
		err  error
	}
	results := make(chan result)
	for _, m := range k.methods {
		go func() {
			err := m.within(ctx, hopeless, conn, at, name)
			if status.Code(err) == codes.DeadlineExceeded {
				err = m.within(ctx, patient, conn, at, name)
			}
			results <- result{m.name, err}
		}()
	}
	out := map[string]error{}
	for range k.methods {
		res := <-results
		out[res.name] = res.err
	}
	return out
}

// served says whether the plugin has the kind's service.
func (k *kind) served(ctx context.Context, conn grpc.ClientConnInterface) error {
	methods := k.service.Methods()
	m := methods.Get(0)
	for i := 1; m.IsStreamingServer() && i < methods.Len(); i++ {
		m = methods.Get(i)
	}
	ctx, cancel := context.WithTimeout(ctx, hopeless)
	defer cancel()
	err := invokeEmpty(ctx, conn, m, backend{})
	if status.Code(err) == codes.Unimplemented && strings.Contains(err.Error(), "unknown service") {
		return fmt.Errorf("it does not serve %s: %w", k.service.FullName(), err)
	}
	return nil
}

// same compares two answers.
func same(a, answerA, b, answerB string) error {
	if answerA == answerB {
		return nil
	}
	return fmt.Errorf("its answer was %.200q %s, and %.200q %s", answerA, a, answerB, b)
}
