//! Expressions in words.

use expect_test::expect;

use crate::quartz::Expression;

#[test]
fn every_shape_has_words() {
    let expressions = [
        // Times of day.
        "* * * * * ?",
        "*/5 * * * * ?",
        "*/7 * * * * ?",
        "5/15 * * * * ?",
        "0/30 * * * * ?",
        "15 * * * * ?",
        "59-1 * * * * ?",
        "* 30 * * * ?",
        "* * 9-17 * * ?",
        "0 * * * * ?",
        "0 0/10 * * * ?",
        "0 50-10/5 * * * ?",
        "0 30 * * * ?",
        "0 0/5 14,18 * * ?",
        "0 0-5 14 * * ?",
        "15,45 */20 9-17 * * ?",
        "0 0 * * * ?",
        "0 0 */6 * * ?",
        "0 0 22-4 * * ?",
        "0 0 8-18/2 ? * 2-6",
        "0 30 9,10,13 * * ?",
        "15,45 0 0,23 * * ?",
        "0 0 0-3,9,12,14,15,20-22 * * ?",
        "0 0 0-3,6-13,20-22 * * ?",
        // Days of the month.
        "0 0 0 1 * ?",
        "0 0 0 1,15,28-31 * ?",
        "0 0 0 1-15/3 * ?",
        "0 0 0 28-2 * ?",
        "0 0 0 L * ?",
        "0 0 0 L-1 * ?",
        "0 0 0 L-3,L * ?",
        "0 15 10 LW * ?",
        "0 0 0 L-3W 2 ?",
        "0 0 0 15W * ?",
        "0 0 0 1,L,1W,15W MAR-MAY ?",
        // Days of the week.
        "0 15 10 ? * *",
        "0 30 9 ? * MON-FRI",
        "0 30 9 ? * 7",
        "0 30 9 ? * L",
        "0 30 9 ? * SUN,WED",
        "0 30 9 ? * FRI-MON,WED",
        "0 30 9 ? * SAT,SUN",
        "0 15 10 ? * 6L",
        "0 15 10 ? * 6#3",
        "0 15 10 ? 2,8 MON#1",
        // Months and years.
        "0 0 0 ? NOV-FEB MON",
        "* * * * 2 ?",
        "0 0 12 * */3 ?",
        "0 0 12 29 2 ? 2028",
        "0 0 12 1 1 ? 2026,2028-2030,2040/5",
        "0 0 12 1 1 ? 2030-2050/10",
        "0 0 12 1 1 ? 2026/1",
        "0 0 12 1 1 ? *",
    ];
    let mut table = String::new();
    for text in expressions {
        table += &format!("{text:<35} {}\n", Expression::parse(text).unwrap().describe());
    }
    expect![[r#"
        * * * * * ?                         every second
        */5 * * * * ?                       every 5 seconds
        */7 * * * * ?                       at seconds 0 to 56 in steps of 7 of every minute
        5/15 * * * * ?                      at seconds 5 to 50 in steps of 15 of every minute
        0/30 * * * * ?                      every 30 seconds
        15 * * * * ?                        at second 15 of every minute
        59-1 * * * * ?                      at seconds 59 to 1 of every minute
        * 30 * * * ?                        every second of minute 30 of every hour
        * * 9-17 * * ?                      every second during hours 9 to 17 every day
        0 * * * * ?                         every minute
        0 0/10 * * * ?                      every 10 minutes
        0 50-10/5 * * * ?                   at minutes 0, 5, 10, 50 and 55 of every hour
        0 30 * * * ?                        at minute 30 of every hour
        0 0/5 14,18 * * ?                   every 5 minutes during hours 14 and 18 every day
        0 0-5 14 * * ?                      at minutes 0 to 5 during hour 14 every day
        15,45 */20 9-17 * * ?               at seconds 15 and 45 of minutes 0 to 40 in steps of 20 during hours 9 to 17 every day
        0 0 * * * ?                         every hour
        0 0 */6 * * ?                       every 6 hours from 00:00:00 to 18:00:00 every day
        0 0 22-4 * * ?                      every hour from 22:00:00 to 04:00:00 every day
        0 0 8-18/2 ? * 2-6                  every 2 hours from 08:00:00 to 18:00:00 on Monday to Friday
        0 30 9,10,13 * * ?                  at 09:30:00, 10:30:00 and 13:30:00 every day
        15,45 0 0,23 * * ?                  at 00:00:15, 00:00:45, 23:00:15 and 23:00:45 every day
        0 0 0-3,9,12,14,15,20-22 * * ?      at 00:00:00, 01:00:00, 02:00:00, 03:00:00, 09:00:00, 12:00:00, 14:00:00, 15:00:00, 20:00:00, 21:00:00 and 22:00:00 every day
        0 0 0-3,6-13,20-22 * * ?            at minute 0 during hours 0 to 3, 6 to 13 and 20 to 22 every day
        0 0 0 1 * ?                         at 00:00:00 on day 1 of every month
        0 0 0 1,15,28-31 * ?                at 00:00:00 on days 1, 15 and 28 to 31 of every month
        0 0 0 1-15/3 * ?                    at 00:00:00 on days 1 to 13 in steps of 3 of every month
        0 0 0 28-2 * ?                      at 00:00:00 on days 1, 2 and 28 to 31 of every month
        0 0 0 L * ?                         at 00:00:00 on the last day of every month
        0 0 0 L-1 * ?                       at 00:00:00 on the day before the last day of every month
        0 0 0 L-3,L * ?                     at 00:00:00 on the day 3 days before the last day and the last day of every month
        0 15 10 LW * ?                      at 10:15:00 on the last weekday of every month
        0 0 0 L-3W 2 ?                      at 00:00:00 on the weekday nearest to the day 3 days before the last day of February
        0 0 0 15W * ?                       at 00:00:00 on the weekday nearest to day 15 of every month
        0 0 0 1,L,1W,15W MAR-MAY ?          at 00:00:00 on day 1, the last day, the weekday nearest to day 1 and the weekday nearest to day 15 of March to May
        0 15 10 ? * *                       at 10:15:00 every day
        0 30 9 ? * MON-FRI                  at 09:30:00 on Monday to Friday
        0 30 9 ? * 7                        at 09:30:00 on Saturday
        0 30 9 ? * L                        at 09:30:00 on Saturday
        0 30 9 ? * SUN,WED                  at 09:30:00 on Wednesday and Sunday
        0 30 9 ? * FRI-MON,WED              at 09:30:00 on Wednesday and Friday to Monday
        0 30 9 ? * SAT,SUN                  at 09:30:00 on Saturday and Sunday
        0 15 10 ? * 6L                      at 10:15:00 on the last Friday of every month
        0 15 10 ? * 6#3                     at 10:15:00 on the third Friday of every month
        0 15 10 ? 2,8 MON#1                 at 10:15:00 on the first Monday of February and August
        0 0 0 ? NOV-FEB MON                 at 00:00:00 on Monday in November to February
        * * * * 2 ?                         every second in February
        0 0 12 * */3 ?                      at 12:00:00 every day in January, April, July and October
        0 0 12 29 2 ? 2028                  at 12:00:00 on day 29 of February, in 2028
        0 0 12 1 1 ? 2026,2028-2030,2040/5  at 12:00:00 on day 1 of January, in 2026, 2028 to 2030 and 2040 and every 5 years after
        0 0 12 1 1 ? 2030-2050/10           at 12:00:00 on day 1 of January, in 2030 to 2050 in steps of 10
        0 0 12 1 1 ? 2026/1                 at 12:00:00 on day 1 of January, in 2026 and every year after
        0 0 12 1 1 ? *                      at 12:00:00 on day 1 of January
    "#]].assert_eq(&table);
}

#[test]
fn the_words_do_not_depend_on_how_an_expression_is_written() {
    let same = [
        ("0 0 9-11 ? * MON-FRI", "0 0 9,10,11 ? * 2,3,4,5,6"),
        ("0/20 * * * * ?", "0,20,40 0-59 * * 1-12 ? 1970/1"),
        ("0 0 0 ? * fri-mon", "0 00 0 ? JAN-DEC 1,2,6-7"),
    ];
    for (left, right) in same {
        let words = |text| Expression::parse(text).unwrap().describe();
        assert_eq!(words(left), words(right));
    }
}
