package main

import (
	"encoding/json"
	"maps"
	"os"
	"sync"
	"time"

	sidekeeper "github.com/sidekeeper/sidekeeper/clients/go"
)

// fields are what an event has besides its name and time.
type fields map[string]any

var telling sync.Mutex

// tell writes an event.
func tell(event string, more fields) {
	telling.Lock()
	defer telling.Unlock()
	line := maps.Clone(more)
	line["event"] = event
	line["time"] = seconds(time.Now())
	text, err := json.Marshal(line)
	if err != nil {
		panic(err)
	}
	os.Stdout.Write(append(text, '\n'))
}

// seconds returns a time as events have it.
func seconds(instant time.Time) float64 {
	return float64(instant.UnixNano()) / 1e9
}

// orNull returns a time as events have it, or null for none.
func orNull(instant time.Time) any {
	if instant.IsZero() {
		return nil
	}
	return seconds(instant)
}

// textOrNull returns a text, or null for none.
func textOrNull(text string) any {
	if text == "" {
		return nil
	}
	return text
}

func itemsOf(items []sidekeeper.AssignedItem) []fields {
	told := make([]fields, len(items))
	for index, item := range items {
		told[index] = fields{
			"item":      item.Item,
			"parameter": textOrNull(item.ItemParameter),
			"token":     item.FencingToken,
			"disabled":  item.Disabled,
		}
	}
	return told
}

func tellAssignment(one sidekeeper.Assignment) {
	tell("assignment", fields{
		"job":        one.JobName,
		"instance":   one.InstanceID,
		"generation": one.Generation,
		"total":      one.ShardingTotalCount,
		"items":      itemsOf(one.Items),
		"leader":     one.Leader,
		"reason":     one.Reason.String(),
	})
}

func tellItems(event string, one sidekeeper.ItemsChange) {
	tell(event, fields{
		"job":        one.JobName,
		"instance":   one.InstanceID,
		"generation": one.Generation,
		"items":      itemsOf(one.Items),
		"reason":     one.Reason.String(),
	})
}
