package bounded

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// However many ask what hangs, one call is under way. A later caller has its answer at once, until that call returns.
func TestOneCallHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Calls
		var made atomic.Int32
		release := make(chan struct{})
		ask := func() error {
			return c.Do("a", Patience, func() error { made.Add(1); <-release; return nil })
		}
		first := make(chan error, 3)
		for range cap(first) {
			go func() { first <- ask() }()
		}
		for range cap(first) {
			if err := <-first; !errors.Is(err, ErrNoAnswer) {
				t.Fatalf("what hangs has the error %v", err)
			}
		}
		at := time.Now()
		if err := ask(); !errors.Is(err, ErrNoAnswer) || !time.Now().Equal(at) {
			t.Errorf("a later caller waited %s: %v", time.Since(at), err)
		}
		if err := c.Do("b", Patience, func() error { return nil }); err != nil {
			t.Errorf("something else: %v", err)
		}
		if n := made.Load(); n != 1 {
			t.Errorf("%d calls hang", n)
		}
		close(release)
		synctest.Wait()
		if err := ask(); err != nil || made.Load() != 2 {
			t.Errorf("when it answers again: %v after %d calls", err, made.Load())
		}
	})
}

// A call returns its own error, and not that of another one beside it.
func TestOwnResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Calls
		begun := make(chan struct{})
		go func() {
			_ = c.Do("a", Patience, func() error { close(begun); time.Sleep(time.Second); return errors.New("another's") })
		}()
		<-begun
		own := errors.New("own")
		if err := c.Do("a", Patience, func() error { return own }); !errors.Is(err, own) {
			t.Errorf("got %v", err)
		}
	})
}
