package check_test

import (
	"errors"
	"testing"

	"github.com/pannier/pannier/test/lib/check"
)

// recorder notes whether a check ended its test.
type recorder struct {
	testing.TB
	fatal bool
}

func (r *recorder) Helper()      {}
func (r *recorder) Fatal(...any) { r.fatal = true }

func TestNoError(t *testing.T) {
	for _, err := range []error{nil, errors.New("x")} {
		r := &recorder{}
		if check.NoError(r, err); r.fatal != (err != nil) {
			t.Errorf("%v: fatal %v", err, r.fatal)
		}
	}
}

func TestMust(t *testing.T) {
	r := &recorder{}
	if got := check.Must(3, nil)(r); got != 3 || r.fatal {
		t.Errorf("got %d, fatal %v", got, r.fatal)
	}
	if check.Must(3, errors.New("x"))(r); !r.fatal {
		t.Error("an error did not end the test")
	}
}

func TestEventuallyLooksUntilItIsTrue(t *testing.T) {
	looks := 0
	check.Eventually(t, "three looks", func() bool { looks++; return looks == 3 })
	if looks != 3 {
		t.Errorf("%d looks", looks)
	}
}
