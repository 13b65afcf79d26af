// Calls an API behind Envoy and obeys its 429s. Standard library only.
//
//	go run . -calls 5 -key my-api-key http://127.0.0.1:10000/
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand"
	"net/http"
	"os"
	"strconv"
	"time"
)

const (
	firstWait   = time.Second      // where a 429 does not say how long; doubles each time
	longestWait = 60 * time.Second // whoever is told to wait longer has something better to do
	jitter      = 0.1              // of the wait, on top of it: clients that were denied together must not return together
)

// Seeded by hand: before Go 1.20 all processes would draw the same.
var random = rand.New(rand.NewSource(time.Now().UnixNano()))

// timeToWait is what Retry-After says, in seconds or as a date; without one, more with each attempt.
func timeToWait(headers http.Header, attempt int) time.Duration {
	value := headers.Get("Retry-After")
	if seconds, err := strconv.ParseUint(value, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	// The two clocks may differ.
	if date, err := http.ParseTime(value); err == nil && time.Until(date) > firstWait {
		return time.Until(date)
	}
	return firstWait << attempt
}

// wait sleeps at least so long, or gives up at once if that is too long.
func wait(ctx context.Context, least time.Duration) error {
	least += time.Duration(random.Float64() * jitter * float64(least))
	deadline, _ := ctx.Deadline()
	if least > longestWait || time.Until(deadline) < least {
		return fmt.Errorf("denied: try again in %.1f s", least.Seconds())
	}
	fmt.Fprintf(os.Stderr, "denied: waiting %.1f s\n", least.Seconds())
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(least):
		return nil
	}
}

// get is a GET that waits as long as 429s say. ctx must have a deadline.
func get(ctx context.Context, url, key string) ([]byte, error) {
	for attempt := 0; ; attempt++ {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return nil, err
		}
		request.Header.Set("x-api-key", key)
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			return nil, err
		}
		body, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		switch {
		case err != nil:
			return nil, err
		case answer.StatusCode == http.StatusOK:
			return body, nil
		case answer.StatusCode != http.StatusTooManyRequests:
			return nil, fmt.Errorf("%s answers %s", url, answer.Status)
		}
		if err := wait(ctx, timeToWait(answer.Header, attempt)); err != nil {
			return nil, err
		}
	}
}

func main() {
	key := flag.String("key", "anonymous", "API key")
	calls := flag.Int("calls", 1, "number of calls")
	within := flag.Duration("deadline", 30*time.Second, "for all calls")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), *within)
	defer cancel()
	for number := 1; number <= *calls; number++ {
		if _, err := get(ctx, flag.Arg(0), *key); err != nil {
			fmt.Fprintln(os.Stderr, "client:", err)
			os.Exit(1)
		}
		fmt.Printf("call %d: done\n", number)
	}
}
