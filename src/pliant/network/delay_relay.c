// delay_relay SEED: takes packets from NFQUEUEs and lets each go on after the delay of its queue, or loses it.
//
// Its input has lines `QUEUE DELAY_US JITTER_US LOSS`, each answered by `ready` when it is in force. The first line for
// a queue opens it. Ends with its input. Packets of a queue leave in the order in which they came (delay_line.h). The
// kernel keeps them; only their numbers pass through here. Raw netlink, so that no library is needed.
#include <arpa/inet.h>
#include <errno.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nfnetlink_queue.h>
#include <linux/netlink.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "delay_line.h"

#define MAX_QUEUES 256
#define MAX_HELD (1 << 17)  // packets of one queue, a power of two: the kernel drops what comes beyond
#define MAX_EVENTS 64

typedef struct {
    int fd;
    uint16_t number;
    delay_line_t line;
    uint32_t head, tail;
    struct { uint32_t id; int64_t due_ns; } *held;  // MAX_HELD of them, of which memory has those that were used
} queue_t;

static queue_t *queues[MAX_QUEUES];
static uint64_t seed;
static int poller, timer;

static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

typedef struct {
    struct nlmsghdr header;
    struct nfgenmsg family;
    uint8_t attributes[64];
} message_t;

static message_t message_for(uint16_t queue, uint16_t type) {
    message_t m;
    memset(&m, 0, sizeof m);
    m.header.nlmsg_type = (uint16_t)(NFNL_SUBSYS_QUEUE << 8 | type);
    m.header.nlmsg_flags = NLM_F_REQUEST;
    m.header.nlmsg_len = NLMSG_LENGTH(sizeof m.family);
    m.family.version = NFNETLINK_V0;
    m.family.res_id = htons(queue);
    return m;
}

static void add(message_t *m, uint16_t type, const void *value, uint16_t length) {
    struct nlattr *attribute = (struct nlattr *)((uint8_t *)m + NLMSG_ALIGN(m->header.nlmsg_len));
    attribute->nla_type = type;
    attribute->nla_len = (uint16_t)(NLA_HDRLEN + length);
    memcpy((uint8_t *)attribute + NLA_HDRLEN, value, length);
    m->header.nlmsg_len = (uint32_t)(NLMSG_ALIGN(m->header.nlmsg_len) + NLA_ALIGN(attribute->nla_len));
}

static void tell(int fd, const message_t *m) {
    if (send(fd, m, m->header.nlmsg_len, 0) < 0) fail("send");
}

static void judge(queue_t *queue, uint16_t type, uint32_t verdict, uint32_t id) {
    struct nfqnl_msg_verdict_hdr header = {htonl(verdict), id};
    message_t m = message_for(queue->number, type);
    add(&m, NFQA_VERDICT_HDR, &header, sizeof header);
    tell(queue->fd, &m);
}

static void take_packet(queue_t *queue, const struct nlmsghdr *header) {
    const uint8_t *at = (const uint8_t *)NLMSG_DATA(header) + NLMSG_ALIGN(sizeof(struct nfgenmsg));
    const uint8_t *end = (const uint8_t *)header + header->nlmsg_len;
    while (at + NLA_HDRLEN <= end) {
        const struct nlattr *attribute = (const struct nlattr *)at;
        if (attribute->nla_len < NLA_HDRLEN) return;
        if ((attribute->nla_type & NLA_TYPE_MASK) == NFQA_PACKET_HDR) {
            uint32_t id = ((const struct nfqnl_msg_packet_hdr *)(const void *)(at + NLA_HDRLEN))->packet_id;
            if (is_lost(&queue->line)) {  // at once, so that it takes no room
                judge(queue, NFQNL_MSG_VERDICT, NF_DROP, id);
                return;
            }
            if (queue->head == queue->tail) queue->head = queue->tail = 0;
            queue->held[queue->tail % MAX_HELD].id = id;  // in network order, as it goes back
            queue->held[queue->tail++ % MAX_HELD].due_ns = due_ns(&queue->line, now_ns());
            return;
        }
        at += NLA_ALIGN(attribute->nla_len);
    }
}

// Takes what a queue's socket has, packets and answers; returns whether there was an answer, and sets errno to it.
static int take(queue_t *queue, int flags) {
    static uint8_t buffer[1 << 18];
    int answered = 0, error = 0;
    ssize_t got = recv(queue->fd, buffer, sizeof buffer, flags);
    if (got < 0 && errno != EAGAIN && errno != ENOBUFS && errno != EINTR) fail("receive");
    size_t left = got > 0 ? (size_t)got : 0;
    for (struct nlmsghdr *h = (struct nlmsghdr *)buffer; NLMSG_OK(h, left); h = NLMSG_NEXT(h, left)) {
        if (h->nlmsg_type == (NFNL_SUBSYS_QUEUE << 8 | NFQNL_MSG_PACKET)) take_packet(queue, h);
        if (h->nlmsg_type == NLMSG_ERROR) {
            answered = 1;
            error = -((const struct nlmsgerr *)NLMSG_DATA(h))->error;
        }
    }
    errno = error;
    return answered;
}

static void ask(queue_t *queue, message_t *m) {
    m->header.nlmsg_flags |= NLM_F_ACK;
    tell(queue->fd, m);
    while (!take(queue, 0)) {}
    if (errno) fail("queue");
}

static void watch(int fd, void *what) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = what};
    if (epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event) < 0) fail("epoll");
}

static queue_t *open_queue(uint16_t number) {
    struct nfqnl_msg_config_cmd bind_queue = {NFQNL_CFG_CMD_BIND, 0, htons(AF_INET)};
    struct nfqnl_msg_config_params only_numbers = {0, NFQNL_COPY_META};
    uint32_t length = htonl(MAX_HELD);
    int size = 1 << 24, yes = 1;
    queue_t *queue = calloc(1, sizeof *queue);
    if (!queue || !(queue->held = calloc(MAX_HELD, sizeof *queue->held))) fail("memory");
    queue->number = number;
    queue->line.random = (seed << 16 | number) * 0x9E3779B97F4A7C15ull | 1;
    queue->fd = socket(AF_NETLINK, SOCK_RAW, NETLINK_NETFILTER);
    if (queue->fd < 0) fail("socket");
    setsockopt(queue->fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof size);
    setsockopt(queue->fd, SOL_NETLINK, NETLINK_NO_ENOBUFS, &yes, sizeof yes);
    message_t m = message_for(number, NFQNL_MSG_CONFIG);
    add(&m, NFQA_CFG_CMD, &bind_queue, sizeof bind_queue);
    ask(queue, &m);
    m = message_for(number, NFQNL_MSG_CONFIG);
    add(&m, NFQA_CFG_PARAMS, &only_numbers, sizeof only_numbers);
    add(&m, NFQA_CFG_QUEUE_MAXLEN, &length, sizeof length);
    ask(queue, &m);
    watch(queue->fd, queue);
    return queues[number] = queue;
}

// Whole segments of up to 64 KB pass, unless packets are lost: then the kernel cuts segments into packets of the wire's
// size first, and each is lost by itself.
static void set_segments(queue_t *queue, int whole) {
    uint32_t mask = htonl(NFQA_CFG_F_GSO), flags = whole ? mask : 0;
    message_t m = message_for(queue->number, NFQNL_MSG_CONFIG);
    add(&m, NFQA_CFG_FLAGS, &flags, sizeof flags);
    add(&m, NFQA_CFG_MASK, &mask, sizeof mask);
    ask(queue, &m);
}

static void set_queue(const char *text) {
    unsigned number;
    long long delay_us, jitter_us;
    double loss;
    if (sscanf(text, "%u %lld %lld %lf", &number, &delay_us, &jitter_us, &loss) != 4 || number >= MAX_QUEUES) {
        fprintf(stderr, "no figures of a queue: %s\n", text);
        exit(2);
    }
    queue_t *queue = queues[number] ? queues[number] : open_queue((uint16_t)number);
    queue->line.delay_ns = delay_us * 1000;
    queue->line.jitter_ns = jitter_us * 1000;
    queue->line.loss = loss;
    set_segments(queue, loss <= 0);
    printf("ready\n");
    fflush(stdout);
}

static void read_input(void) {
    static char text[4096];
    static size_t used;
    ssize_t got = read(STDIN_FILENO, text + used, sizeof text - 1 - used);
    if (got <= 0) exit(0);
    used += (size_t)got;
    text[used] = 0;
    char *line = text;
    for (char *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = 0;
        set_queue(line);
    }
    used = strlen(line);
    memmove(text, line, used);
}

// Lets go what is due, by batch verdicts, which cover every packet up to a number; returns when the next is due, or 0.
static int64_t release_due(void) {
    int64_t now = now_ns(), next_ns = 0;
    for (int k = 0; k < MAX_QUEUES; k++) {
        queue_t *queue = queues[k];
        if (!queue || queue->head == queue->tail) continue;
        uint32_t id = 0, first = queue->head;
        for (; queue->head != queue->tail && queue->held[queue->head % MAX_HELD].due_ns <= now; queue->head++)
            id = queue->held[queue->head % MAX_HELD].id;
        if (queue->head != first) judge(queue, NFQNL_MSG_VERDICT_BATCH, NF_ACCEPT, id);
        if (queue->head == queue->tail) continue;
        int64_t due = queue->held[queue->head % MAX_HELD].due_ns;
        if (!next_ns || due < next_ns) next_ns = due;
    }
    return next_ns;
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: delay_relay SEED\n");
        return 2;
    }
    seed = strtoull(argv[1], NULL, 10);
    poller = epoll_create1(0);
    timer = timerfd_create(CLOCK_MONOTONIC, 0);
    if (poller < 0 || timer < 0) fail("timer");
    watch(STDIN_FILENO, NULL);
    watch(timer, &timer);
    for (;;) {
        struct epoll_event events[MAX_EVENTS];
        int64_t due = release_due();
        struct itimerspec when = {{0, 0}, {due / 1000000000, due % 1000000000}};  // zeros: never
        timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, NULL);
        int num = epoll_wait(poller, events, MAX_EVENTS, -1);
        if (num < 0 && errno != EINTR) fail("epoll");
        for (int k = 0; k < num; k++) {
            uint64_t ticks;
            if (!events[k].data.ptr) read_input();
            else if (events[k].data.ptr != &timer) take(events[k].data.ptr, MSG_DONTWAIT);
            else if (read(timer, &ticks, sizeof ticks) < 0 && errno != EAGAIN) fail("timer");
        }
    }
}
