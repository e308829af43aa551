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
	"github.com/pannier/pannier/sdk/frontend"
	"github.com/pannier/pannier/sdk/identity"
	"github.com/pannier/pannier/sdk/registration"
	"github.com/pannier/pannier/sdk/storage"
)

// kind is what the checks know about a kind.
type kind struct {
	// service is the kind's gRPC service.
	service protoreflect.ServiceDescriptor
	// ask makes a call that changes nothing, and returns its answer in a form that can be compared.
	ask func(ctx context.Context, conn grpc.ClientConnInterface, at backend) (string, error)
	// methods are the calls of a plugin of the kind, with all fields that a host sets.
	methods []method
	// optional are the checks of methods that a plugin may lack.
	optional []string
	// missing names what a Config lacks for a job; empty: nothing.
	missing func(*Config) string
	// job returns the steps of a job with a real backend, from making to removing.
	job func(ctx context.Context, r *run, conn grpc.ClientConnInterface, name string) ([]step, error)
	// refusals are calls to a real backend that must fail with a certain code.
	refusals []refusal
	// final makes a call that the backend behind the socket answers with a final error.
	final func(ctx context.Context, conn grpc.ClientConnInterface, at backend) error
	// stream opens a stream that ends only with its context; nil: the kind has none. It calls opened at the first
	// answer.
	stream func(ctx context.Context, conn grpc.ClientConnInterface, at backend, opened func()) error
}

// method is one call. name is unique for each check, and so is what the call makes.
type method struct {
	name string
	call func(ctx context.Context, conn grpc.ClientConnInterface, at backend, name string) error
}

// refusal is a call that must fail with the code that the kind's documentation gives.
type refusal struct {
	what string
	code codes.Code
	call func(ctx context.Context, r *run, conn grpc.ClientConnInterface) error
}

// step is one call of a job. It can be repeated, also by another process.
type step struct {
	name string
	// base steps run before all others, even if the job ends early.
	base bool
	// undo steps remove something; they succeed if it does not exist.
	undo bool
	// tidy steps run only when a job has failed, among those that undo it.
	tidy bool
	do   func(ctx context.Context, conn grpc.ClientConnInterface) (answer string, err error)
}

var kinds = map[string]*kind{
	storage.Kind:      storageKind,
	identity.Kind:     identityKind,
	registration.Kind: registrationKind,
	bootstrap.Kind:    bootstrapKind,
	device.Kind:       deviceKind,
	frontend.Kind:     frontendKind,
}

func kindNames() string { return strings.Join(slices.Sorted(maps.Keys(kinds)), ", ") }

// Time limits of calls that are expected to fail, or to hang.
const (
	hopeless = time.Second
	patient  = 10 * time.Second       // for a call that had no answer in time, because the machine may be busy
	underway = 200 * time.Millisecond // for a call to reach its backend
)

// asked returns the answer of ask, or the outcome of its error.
func (k *kind) asked(ctx context.Context, conn grpc.ClientConnInterface, at backend) string {
	ctx, cancel := context.WithTimeout(ctx, at.patience+2*time.Second)
	defer cancel()
	answer, err := k.ask(ctx, conn, at)
	if err != nil {
		return outcome(err)
	}
	return answer
}

// outcome is how a host treats an answer: it retries an error, or uses the code.
func outcome(err error) string {
	switch code := status.Code(err); code {
	case codes.OK:
		return "success"
	case codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted:
		return "an error that is retried"
	default:
		return "the error " + code.String() + ": " + status.Convert(err).Message()
	}
}

// within makes one call with a time limit.
func (m method) within(ctx context.Context, limit time.Duration, conn grpc.ClientConnInterface, at backend,
	name string,
) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return m.call(ctx, conn, at, name)
}

// outcomes calls all methods in parallel and returns the result of each that the plugin has.
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
		if !slices.Contains(k.optional, res.name) || status.Code(res.err) != codes.Unimplemented {
			out[res.name] = res.err
		}
	}
	return out
}

// served checks that the plugin has the kind's service.
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
